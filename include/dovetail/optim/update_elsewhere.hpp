// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/optim/fused_bucket.hpp>

#include <optional>
#include <vector>

namespace dovetail::detail {

/// What LibTorch's fused kernels want besides tensors, for a bucket on another device than the CPU.
struct FusedArguments {
  std::vector<torch::Tensor> counters;       ///< one handle per run, all of the same fp32 tensor of one element
  std::optional<torch::Tensor> divisor;      ///< fp32, one element; nullopt: 1
  std::optional<torch::Tensor> found_inf{};  ///< always none: whether to step is decided before
};

/// Calls `kernel(arguments)`, then writes rounded copies.
template <class Kernel>
void update_elsewhere(Bucket& bucket, double divisor, Kernel&& kernel) {
  const auto like = bucket.params.front().options().dtype(torch::kFloat32).requires_grad(false);
  FusedArguments arguments;
  arguments.counters.assign(bucket.params.size(), torch::full({1}, double(bucket.step()), like));
  if (bucket.dtype() == torch::kFloat64 && double(float(divisor)) != divisor) {  // the kernels' fp32 would not hold it
    for (torch::Tensor& grad : bucket.grads) grad.div_(divisor);
  } else if (divisor != 1) {
    arguments.divisor = torch::full({1}, divisor, like);
  }
  kernel(arguments);
  for (std::size_t r = 0; r < bucket.lows.size(); ++r) bucket.lows[r].copy_(bucket.params[r]);
}

}  // namespace dovetail::detail
