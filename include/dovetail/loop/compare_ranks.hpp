// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/compare_lines.hpp>
#include <dovetail/loop/batch_source.hpp>
#include <dovetail/loop/exact_number.hpp>
#include <dovetail/loop/resolved_options.hpp>
#include <dovetail/optim/each_option.hpp>
#include <dovetail/run/context.hpp>

#include <string>

namespace dovetail {

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

/// Ranks must have made the same optimizers over the same parameters, with the same options.
/// @throws Error(ranks_disagree)
inline void compare_optimizers(RunContext& run) {
  if (run.world_size() == 1) return;
  std::string lines;
  for (std::size_t k = 0; k < run.optimizers.size(); ++k) {
    const OptimizerEntry& optimizer = run.optimizers[k];
    const auto& groups = std::as_const(optimizer.base()).param_groups();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const std::string place = optimizer.type() + " " + std::to_string(k) + ", group " + std::to_string(g);
      each_option(groups[g].options(), [&](std::string_view name, double value) {
        lines += place + ": " + std::string(name) + " " + detail::exact_number(value) + "\n";
      });
      for (const torch::Tensor& tensor : groups[g].params())
        for (const Parameter& parameter : run.held)
          if (parameter.tensor.is_same(tensor)) lines += place + ": " + parameter.name + "\n";
    }
  }
  compare_lines(run.comm, lines, "made other optimizers than", "configure_optimizers must not depend on the rank.");
}

}  // namespace dovetail
