// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Dispatch.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <dovetail/optim/adjacent.hpp>

#include <cmath>
#include <cstdint>
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

/// Squares are added up in double, in several sums that do not wait for one another.
template <class Scalar>
double squared_norm_loop(const Scalar* x, int64_t count) {
  constexpr int64_t lanes = 8;
  double sums[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (int64_t lane = 0; lane < lanes; ++lane) sums[lane] += double(x[i + lane]) * double(x[i + lane]);
  for (; i < count; ++i) sums[0] += double(x[i]) * double(x[i]);
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

inline double squared_norm_on_cpu(const torch::Tensor& dense) {
  return AT_DISPATCH_FLOATING_TYPES_AND2(torch::kBFloat16, torch::kHalf, dense.scalar_type(), "squared_norm", [&] {
    return squared_norm_loop(dense.const_data_ptr<scalar_t>(), dense.numel());
  });
}

/// By LibTorch's kernel, which knows wider vector instructions, threads and other devices. It adds in fp32, so it is
/// given rows of a few thousand elements, and their norms are squared and added up in double. A row belongs to one
/// thread: the number of threads changes nothing.
inline double squared_norm_by_rows(const torch::Tensor& flat) {
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

/// Sum of the squares of all elements, accumulated in double. Not finite exactly if some element is not (in fp64: or
/// its square overflows). Makes no temporary of the tensor's size, for tensors that are dense. The same bits for any
/// number of threads.
inline double squared_norm(const torch::Tensor& gradient) {
  constexpr int64_t worth_a_kernel = 16384;
  torch::NoGradGuard no_grad;
  if (!is_dense(gradient)) return squared_norm(gradient.contiguous());
  if (gradient.is_cpu() && (gradient.numel() < worth_a_kernel || gradient.scalar_type() != torch::kFloat32))
    return detail::squared_norm_on_cpu(gradient);
  const torch::Tensor flat = detail::flat_view(gradient, gradient.numel());
  if (!flat.is_cpu()) return detail::squared_norm_by_rows(flat);
  const double total = detail::squared_norm_by_rows(flat);
  return std::isfinite(total) ? total
                              : detail::squared_norm_on_cpu(flat);  // a square of 1e20 is too large for fp32 only
}

/// The same over several tensors. For few, large ones: see merge_adjacent.
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
