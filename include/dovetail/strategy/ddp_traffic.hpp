// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/dense.hpp>
#include <dovetail/strategy/ddp.hpp>
#include <dovetail/strategy/step_traffic.hpp>

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <map>
#include <vector>

namespace dovetail::detail {

/// DDPRun::traffic: of a step after the first, which settles the buckets, in a backward that reaches parameters in the
/// reverse order of registration.
inline StepTraffic ddp_traffic(const DDP::Options& options, const StepShape& step) {
  StepTraffic sent;
  std::vector<torch::Tensor> tensors;
  std::map<torch::ScalarType, int64_t> homes;  // elements, where the flat home itself is reduced
  bool low = false;
  for (const Slot& slot : slots_of(step.model)) {
    tensors.insert(tensors.begin(), slot.model);
    homes[slot.model.scalar_type()] += slot.model.numel();
    low |= main_dtype_of(slot.model.scalar_type()) != slot.model.scalar_type();
  }
  if (low || step.deterministic) {
    for (const auto& [dtype, elements] : homes) {
      const int64_t padded = (elements + step.ranks - 1) / step.ranks * step.ranks;
      sent.counts.plan(Collective::all_reduce,
                       (step.deterministic ? padded : elements) * int64_t(c10::elementSize(main_dtype_of(dtype))),
                       step.ranks);
    }
  } else if (!tensors.empty()) {
    const std::vector<size_t> limits{size_t(options.first_bucket_mb) << 20, size_t(options.bucket_mb) << 20};
    const auto [buckets, sizes] = c10d::compute_bucket_assignment_by_size(tensors, limits);
    for (const auto& bucket : buckets) {
      int64_t bytes = 0;
      for (const size_t i : bucket) bytes += int64_t(tensors[i].nbytes());
      sent.counts.plan(Collective::all_reduce, bytes, step.ranks);
    }
  }
  return sent;
}

}  // namespace dovetail::detail
