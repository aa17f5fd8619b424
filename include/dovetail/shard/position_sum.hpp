// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <algorithm>

namespace dovetail::detail {

/// A number by which ranks see whether they have the same elements: their sum in fp64, each times its position, so that
/// a permutation gives another one. Takes memory for a few of the elements at a time.
inline double position_sum(const torch::Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  constexpr int64_t at_a_time = 1 << 14;
  torch::Tensor flat = tensor.detach().flatten();
  if (flat.is_complex()) flat = torch::view_as_real(flat).flatten();
  double sum = 0;
  for (int64_t from = 0; from < flat.numel(); from += at_a_time) {
    const torch::Tensor some = flat.narrow(0, from, std::min(at_a_time, flat.numel() - from)).to(torch::kFloat64);
    sum += some.mul(torch::arange(from + 1, from + 1 + some.numel(), some.options())).sum().item<double>();
  }
  return sum;
}

}  // namespace dovetail::detail
