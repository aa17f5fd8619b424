// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/gather_text.hpp>
#include <dovetail/loop/batch_source.hpp>
#include <dovetail/loop/exact_number.hpp>
#include <dovetail/loop/resolved_options.hpp>
#include <dovetail/run/context.hpp>

#include <sstream>
#include <string>

namespace dovetail {

/// Compares lines of text over the ranks. A collective.
/// @throws Error(ranks_disagree) with the first line in which a rank differs from rank 0
inline void compare_lines(Communicator& comm, const std::string& mine, const std::string& what,
                          const std::string& cure) {
  if (comm.size() == 1) return;
  const auto all = all_gather_text(comm, mine);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    std::istringstream first(all[0]), other(all[r]);
    std::string ours, theirs;
    do {
      if (!std::getline(first, ours)) ours = "nothing";
      if (!std::getline(other, theirs)) theirs = "nothing";
    } while (ours == theirs);
    throw Error(ExitCode::ranks_disagree, "rank " + std::to_string(r) + " " + what + " rank 0: '" + theirs +
                                              "' where rank 0 has '" + ours + "'. " + cure);
  }
}

/// Ranks must be given the same options, or they would part ways, some as early as in set-up.
/// @throws Error(ranks_disagree)
inline void compare_options(RunContext& run) {
  if (run.world_size() == 1) return;
  std::string lines;
  for (const auto& [name, value] : resolved_options(run)) lines += name + " = " + value + "\n";
  compare_lines(run.comm, lines, "was given another run than", "Give every rank the same options.");
}

/// Ranks must be given the same data, or they would deal other samples.
/// @throws Error(ranks_disagree)
inline void compare_data(RunContext& run, const BatchSource& training, const BatchSource* validation) {
  if (run.world_size() == 1) return;
  const auto lines = "training samples = " + std::to_string(training.samples()) +
                     "\nvalidation samples = " + (validation ? std::to_string(validation->samples()) : "none") + "\n";
  compare_lines(run.comm, lines, "was given other data than", "Give every rank the same data.");
}

/// Ranks must have made the same optimizers over the same parameters, with the same learning rates.
/// @throws Error(ranks_disagree)
inline void compare_optimizers(RunContext& run) {
  if (run.world_size() == 1) return;
  std::string lines;
  for (std::size_t k = 0; k < run.optimizers.size(); ++k) {
    const OptimizerEntry& optimizer = run.optimizers[k];
    const auto& groups = std::as_const(optimizer.base()).param_groups();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const std::string place = optimizer.type() + " " + std::to_string(k) + ", group " + std::to_string(g);
      lines += place + ": learning rate " + detail::exact_number(groups[g].options().get_lr()) + "\n";
      for (const torch::Tensor& tensor : groups[g].params())
        for (const Parameter& parameter : run.held)
          if (parameter.tensor.is_same(tensor)) lines += place + ": " + parameter.name + "\n";
    }
  }
  compare_lines(run.comm, lines, "made other optimizers than", "configure_optimizers must not depend on the rank.");
}

}  // namespace dovetail
