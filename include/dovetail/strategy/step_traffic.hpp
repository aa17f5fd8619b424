// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/counts.hpp>
#include <dovetail/core/traits.hpp>
#include <dovetail/shard/flat_layout.hpp>

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace dovetail {

/// What a step is made of, as far as communication depends on it.
struct StepShape {
  torch::nn::Module& model;  ///< as it is when training begins: cast, where the precision casts it, and not cut
  PrecisionTraits precision{};
  int ranks = 1;
  int64_t micro_batches = 1;
  int64_t passes = 1;               ///< backward passes of each micro-batch: one for each loss that has a scaler
  bool scale_per_backward = false;  ///< loss scales move after every backward pass (Apex)
  int64_t norms = 0;                ///< optimizers whose gradient norm is needed, for clipping or a loss scaler
  bool agrees = true;               ///< false: a loop of one's own, whose ranks agree on nothing
  Cut cut = Cut::inside_tensors;    ///< at_borders: an optimizer that is not element-wise
  bool deterministic = false;
};

/// What one rank sends in one step, and the most bytes of whole parameters, and of slices of them, that it has at once.
/// A Strategy tells it by a hook, if it likes:
///
///     dt::StepTraffic traffic(const dt::StepShape& step) const {
///       dt::StepTraffic sent;
///       for (const auto& parameter : step.model.parameters())
///         sent.counts.plan(dt::Collective::all_reduce, parameter.nbytes(), step.ranks);
///       return sent;
///     }
struct StepTraffic {
  CommunicationCounts counts{};
  int64_t peak_gathered_bytes = 0;

  /// One line: "traffic    13 collectives, 1.25 MB sent by each rank, at most 0.61 MB gathered per step".
  std::string text(std::string_view per = "step") const {
    const auto megabytes = [](int64_t bytes) {
      const std::string digits = std::to_string((bytes + 5000) / 10000);
      const std::string padded = std::string(digits.size() < 3 ? 3 - digits.size() : 0, '0') + digits;
      return padded.substr(0, padded.size() - 2) + "." + padded.substr(padded.size() - 2) + " MB";
    };
    std::string line = "traffic    " + std::to_string(counts.calls) + " collectives, " + megabytes(counts.bytes) +
                       " sent by each rank";
    if (peak_gathered_bytes > 0) line += ", at most " + megabytes(peak_gathered_bytes) + " gathered";
    return line + " per " + std::string(per) + "\n";
  }
};

}  // namespace dovetail
