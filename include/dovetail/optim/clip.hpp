// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>
#include <torch/utils.h>

#include <dovetail/optim/adjacent.hpp>
#include <dovetail/optim/kernel_norm.hpp>
#include <dovetail/optim/kernel_tensors.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace dovetail {

/// How gradients are clipped: made by clip_norm or clip_value.
struct ClipOptions {
  enum class Kind { norm, value };
  Kind kind = Kind::norm;
  double limit = 1;
};

/// Scales all gradients down together where their 2-norm, over all parameters of the optimizer and all ranks, is above
/// `limit`.
constexpr ClipOptions clip_norm(double limit) {
  return {ClipOptions::Kind::norm, limit};
}

/// Clips each element of a gradient to [-limit, limit].
constexpr ClipOptions clip_value(double limit) {
  return {ClipOptions::Kind::value, limit};
}

/// What gradients of this norm are multiplied with: min(1, limit / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_
/// has it. NaN where the norm is NaN.
inline double clip_coefficient(double norm, double limit) {
  const double coefficient = limit / (norm + 1e-6);
  return coefficient > 1 ? 1 : coefficient;
}

namespace detail {

/// Sums of blocks of norm_block elements, by several threads, added up one after the other.
inline double squared_norm_on_cpu(const torch::Tensor& dense) {
  const Cpu cpu = this_cpu();
  const Format format = format_of(dense.scalar_type());
  const auto* data = const_bytes_of(dense);
  const int64_t count = dense.numel();
  const auto block = [&](int64_t b) {
    const int64_t first = b * norm_block;
    return squared_norm_of_block(cpu, format, data + first * size_of(format), std::min(norm_block, count - first));
  };
  if (count <= norm_block) return block(0);
  std::vector<double> sums(std::size_t((count + norm_block - 1) / norm_block));
  share_out(int64_t(sums.size()), [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) sums[std::size_t(b)] = block(b);
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// On other devices LibTorch's kernel adds in fp32, so it is given rows of a few thousand elements, and their norms are
/// squared and added up in double.
inline double squared_norm_elsewhere(const torch::Tensor& flat) {
  constexpr int64_t row = 4096;
  const int64_t whole = flat.numel() / row * row;
  const auto acc = flat.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  const auto squared = [&](const torch::Tensor& rows) {
    return squared_norm_on_cpu(torch::linalg_vector_norm(rows, 2, at::IntArrayRef{1}, false, acc).cpu());
  };
  double total = 0;
  if (whole > 0) total += squared(flat.narrow(0, 0, whole).view({-1, row}));
  if (whole < flat.numel()) total += squared(flat.narrow(0, whole, flat.numel() - whole).view({1, -1}));
  return total;
}

}  // namespace detail

/// Sum of the squares of all elements, accumulated in double, in one pass. On the CPU not finite exactly if some
/// element is not (in fp64: or its square overflows); on other devices squares of fp32 overflow as well. Makes no
/// temporary of the tensor's size, for tensors that are dense. The same bits for any number of threads.
inline double squared_norm(const torch::Tensor& gradient) {
  torch::NoGradGuard no_grad;
  if (!is_dense(gradient)) return squared_norm(gradient.contiguous());
  if (gradient.is_cpu()) return detail::squared_norm_on_cpu(gradient);
  return detail::squared_norm_elsewhere(detail::flat_view(gradient, gradient.numel()));
}

/// The same over several tensors. For few, large ones: see merge_adjacent.
inline double squared_norm(const std::vector<torch::Tensor>& flats) {
  double total = 0;
  for (const torch::Tensor& flat : flats) total += squared_norm(flat);
  return total;
}

}  // namespace dovetail
