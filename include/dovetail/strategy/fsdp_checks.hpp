// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/launch/error.hpp>
#include <dovetail/strategy/fsdp.hpp>

#include <string>

namespace dovetail {

/// Refuses options of FSDP that mean nothing, or nothing on so many ranks.
/// @throws Error(arguments)
inline void check_options(const FSDP::Options& options, int ranks) {
  const auto refuse = [](const std::string& what) { throw Error(ExitCode::arguments, "FSDP's " + what); };
  if (options.prefetch < 0) refuse("prefetch is negative: it must be at least 0.");
  if (options.keep_below < 0) refuse("keep_below is negative: it must be at least 0.");
  if (options.max_gathered < 0) refuse("max_gathered is negative: it must be at least 1, or 0 for no limit.");
  const int group = options.group_sizes(ranks).shard;
  if (options.shard_group < 0 || ranks % group != 0)
    refuse("shard_group is " + std::to_string(options.shard_group) + " on " + std::to_string(ranks) +
           " ranks: the number of ranks that share one replica of the model must divide the ranks.");
  const int slices = options.reshard_after_forward.slices().value_or(1);
  if (slices < 1 || group % slices != 0)
    refuse("reshard_after_forward is to_ranks(" + std::to_string(slices) + "), which must divide the " +
           std::to_string(group) + " ranks that share one replica of the model.");
}

}  // namespace dovetail
