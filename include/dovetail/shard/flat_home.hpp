// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <dovetail/shard/flat_layout.hpp>

namespace dovetail {

/// `like`'s elements seen in `flat` from `offset` on: same sizes, same strides, no copy. `like` must be dense.
inline torch::Tensor view_like(const torch::Tensor& flat, int64_t offset, const torch::Tensor& like) {
  return flat.as_strided(like.sizes(), like.strides(), flat.storage_offset() + offset);
}

/// The same with a version counter of its own: whoever writes into the alias bumps nobody else's counter, so its
/// counter tells whether a gradient arrived in it.
inline torch::Tensor alias_like(const torch::Tensor& flat, int64_t offset, const torch::Tensor& like) {
  return view_like(flat, offset, like).variable_data();
}

/// The elements of a dense tensor in the order in which they lie in memory, as one dimension, no copy.
inline torch::Tensor in_storage_order(const torch::Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1}, dense.storage_offset());
}

/// Moves each tensor's data into `flat` at its place and makes the tensor a view of it. Identity, dtype, sizes and
/// strides stay, so modules, optimizers and gradient accumulators notice nothing.
inline void move_into(const torch::Tensor& flat, const FlatLayout& layout, std::vector<torch::Tensor>& tensors) {
  torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const torch::Tensor data = tensors[i].variable_data();
    const torch::Tensor view = alias_like(flat, layout.offset(i), data);
    view.copy_(data);
    tensors[i].set_data(view);
  }
}

/// Every pair takes gradients as dense tensors: sums, norms and optimizers pass over memory. Those of an embedding with
/// sparse(true) become dense as soon as autograd has made them.
inline void make_dense(torch::Tensor& gradient) {
  if (gradient.is_sparse()) gradient = gradient.to_dense();
}

/// Elements of each tensor, for FlatLayout.
inline std::vector<int64_t> numels_of(const std::vector<torch::Tensor>& tensors) {
  std::vector<int64_t> numels;
  for (const auto& tensor : tensors) numels.push_back(tensor.numel());
  return numels;
}

}  // namespace dovetail
