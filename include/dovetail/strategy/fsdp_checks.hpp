// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/communicator.hpp>
#include <dovetail/strategy/fsdp.hpp>

#include <array>
#include <string>

namespace dovetail {

/// Refuses options of FSDP that mean nothing, or nothing on so many ranks.
/// @throws Error(arguments)
inline void check_options(const FSDP::Options& options, int ranks) {
  const auto refuse = [](const std::string& what) { throw Error(ExitCode::arguments, "FSDP's " + what); };
  if (options.prefetch < 0) refuse("prefetch is negative: it must be at least 0.");
  if (options.keep_below < 0) refuse("keep_below is negative: it must be at least 0.");
  if (options.max_gathered < 0) refuse("max_gathered is negative: it must be at least 1, or 0 for no limit.");
  const int group = options.shard_group, copy = options.ranks_per_copy(ranks);
  if (group < 0 || ranks % copy != 0)
    refuse("shard_group is " + std::to_string(group) + " on " + std::to_string(ranks) +
           " ranks: the number of ranks that share one copy of the model must divide the ranks.");
  const int slices = options.reshard_after_forward.slices().value_or(1);
  if (slices < 1 || copy % slices != 0)
    refuse("reshard_after_forward is to_ranks(" + std::to_string(slices) + "), which must divide the " +
           std::to_string(copy) + " ranks that share one copy of the model.");
}

/// Every rank must have been given the same options, or they would wait for each other's collectives. A collective.
/// @throws Error(ranks_disagree)
inline void compare_options(const FSDP::Options& options, Communicator& comm) {
  constexpr std::array names{"reshard_after_forward", "prefetch",    "keep_below",   "reduce",
                             "reduce_format",         "shard_group", "max_gathered", "deferred_building"};
  const auto number = [](const auto& chosen) { return chosen ? double(*chosen) : -1; };
  const std::array mine{number(options.reshard_after_forward.slices()),
                        double(options.prefetch),
                        double(options.keep_below),
                        double(options.reduce),
                        number(options.reduce_format),
                        double(options.shard_group),
                        double(options.max_gathered),
                        double(options.deferred_building)};
  static_assert(mine.size() == names.size());
  const auto all = comm.all_gather(mine);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i] != all[i % mine.size()])
      throw Error(ExitCode::ranks_disagree, "rank " + std::to_string(i / mine.size()) +
                                                " was given another value of FSDP's " + names[i % mine.size()] +
                                                " than rank 0. Give every rank the same options.");
}

}  // namespace dovetail
