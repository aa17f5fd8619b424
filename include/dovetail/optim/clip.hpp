// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <vector>

namespace dovetail {

/// How gradients are clipped: made by clip_norm or clip_value.
struct ClipOptions {
  enum class Kind { norm, value };
  Kind kind = Kind::norm;
  double limit = 1;
};

/// Scales all gradients down together where their 2-norm, over all parameters of the optimizer and all ranks, is above `limit`.
constexpr ClipOptions clip_norm(double limit) { return {ClipOptions::Kind::norm, limit}; }

/// Clips each element of a gradient to [-limit, limit].
constexpr ClipOptions clip_value(double limit) { return {ClipOptions::Kind::value, limit}; }

/// What gradients of this norm are multiplied with: min(1, limit / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ has it.
/// NaN where the norm is NaN.
inline double clip_coefficient(double norm, double limit) {
  const double coefficient = limit / (norm + 1e-6);
  return coefficient > 1 ? 1 : coefficient;
}

namespace detail {

// Plain loops: `lanes` independent sums, which compilers turn into vector code without being allowed to reorder.
template <class Scalar>
double squared_norm_loop(const Scalar* x, int64_t count) {
  constexpr int64_t lanes = 8;
  double sums[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (int64_t lane = 0; lane < lanes; ++lane) sums[lane] += double(x[i + lane]) * double(x[i + lane]);
  double total = 0;
  for (; i < count; ++i) total += double(x[i]) * double(x[i]);
  for (double sum : sums) total += sum;
  return total;
}

// Large tensors, other devices and low formats: LibTorch's kernel, row by row so that no fp32 sum is long.
inline double squared_norm_by_rows(const torch::Tensor& flat) {
  constexpr int64_t row = 4096;
  const int64_t whole = flat.numel() / row * row;
  const auto acc = flat.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  const auto squared = [&](const torch::Tensor& rows) {
    return torch::linalg_vector_norm(rows, 2, at::IntArrayRef{1}, false, acc).to(torch::kFloat64).square().sum().item<double>();
  };
  double total = 0;
  if (whole > 0) total += squared(flat.narrow(0, 0, whole).view({-1, row}));
  if (whole < flat.numel()) total += squared(flat.narrow(0, whole, flat.numel() - whole).view({1, -1}));
  return total;
}

}  // namespace detail

/// Sum of the squares of all elements, accumulated in double. Infinite or NaN exactly if some element is infinite or NaN.
inline double squared_norm(const torch::Tensor& gradient) {
  torch::NoGradGuard no_grad;
  return detail::squared_norm_by_rows(gradient.reshape({-1}));
}

inline double squared_norm(const std::vector<torch::Tensor>& flats) {
  double total = 0;
  for (const torch::Tensor& flat : flats) total += squared_norm(flat);
  return total;
}

/// Clips every element to [-limit, limit], in place.
inline void clip_elements(std::vector<torch::Tensor>& flats, double limit) {
  torch::NoGradGuard no_grad;
  for (torch::Tensor& flat : flats) flat.clamp_(-limit, limit);
}

}  // namespace dovetail
