// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/optim/fused_bucket.hpp>
#include <dovetail/optim/kernel_tensors.hpp>
#include <dovetail/optim/kernel_update.hpp>

#include <algorithm>

namespace dovetail::detail {

/// Steps every run of a bucket on the CPU by one rule. Long runs are shared out among threads.
template <class Rule>
void update_by(const Rule& rule, const Bucket& bucket) {
  constexpr int64_t piece = 1 << 14;
  const Cpu cpu = this_cpu();
  UpdateArrays arrays{.format = format_of(bucket.dtype()), .grad_format = format_of(bucket.grad_dtype())};
  if (!bucket.lows.empty()) arrays.low_format = format_of(bucket.lows.front().scalar_type());
  for (std::size_t r = 0; r < bucket.params.size(); ++r) {
    arrays.param = bytes_of(bucket.params[r]);
    arrays.grad = const_bytes_of(bucket.grads[r]);
    for (int k = 0; k < rule.states(); ++k) arrays.state[k] = bytes_of(bucket.states[std::size_t(k)][r]);
    if (!bucket.lows.empty()) arrays.low = bytes_of(bucket.lows[r]);
    const int64_t count = bucket.params[r].unsafeGetTensorImpl()->numel();
    if (count < 4 * piece) {
      update_range(cpu, rule, arrays, 0, count);
      continue;
    }
    share_out((count + piece - 1) / piece, [&](int64_t first, int64_t last) {
      update_range(cpu, rule, arrays, first * piece, std::min(count, last * piece));
    });
  }
}

/// Steps a bucket on the CPU: fp64 parameters in fp64, others in fp32. Rounded copies are written in the same pass.
template <class Step>
void update_on_cpu(const Step& step, const Bucket& bucket) {
  if (bucket.dtype() == torch::kFloat64)
    update_by(step.template rule<double>(), bucket);
  else
    update_by(step.template rule<float>(), bucket);
}

}  // namespace dovetail::detail
