// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace dovetail {

/// Parameters whose elements follow one another in one storage, and whose gradients (and rounded copies, where there
/// are such) do so in theirs: one tensor for a kernel.
struct Run {
  torch::Tensor param;  ///< of one member: that tensor, or its 1-D view where its layout is not the usual one; else a
                        ///< 1-D view over all
  torch::Tensor grad;   ///< likewise, the same elements in the same order
  torch::Tensor low;    ///< likewise; undefined where no rounded copies were given
  std::vector<std::size_t> members;  ///< positions in the lists that were given, in memory order
};

namespace detail {

inline int64_t first_element(const torch::Tensor& tensor) {
  return tensor.storage_offset();
}

/// A 1-D view over `count` elements in memory order, starting where `first` does. It has a version counter of its own,
/// so that writing through it tells nobody who counts writes to the tensor that a gradient has arrived.
inline torch::Tensor flat_view(const torch::Tensor& first, int64_t count) {
  return first.variable_data().as_strided({count}, {1}, first_element(first)).variable_data();
}

inline bool same_storage(const torch::Tensor& a, const torch::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() && a.scalar_type() == b.scalar_type();
}

/// Does `b` begin in the very storage of `a` where `a` ends?
inline bool follows(const torch::Tensor& a, const torch::Tensor& b) {
  return first_element(b) == first_element(a) + a.numel() && same_storage(a, b);
}

/// Positions of the tensors that have elements, sorted so that neighbours in a storage are neighbours in the list.
inline std::vector<std::size_t> memory_order(const std::vector<torch::Tensor>& tensors) {
  std::vector<std::size_t> order;
  order.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].numel() > 0) order.push_back(i);
  const auto place = [&](std::size_t i) {
    return std::pair(tensors[i].storage().unsafeGetStorageImpl(), first_element(tensors[i]));
  };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
  return order;
}

/// Cuts memory_order into stretches of neighbours, given as lists of positions. Stretches come in the order of their
/// earliest member, never of addresses: sums over them have the same bits in every process.
template <class Follows>
std::vector<std::vector<std::size_t>> stretches(const std::vector<torch::Tensor>& tensors, Follows&& neighbours) {
  std::vector<std::vector<std::size_t>> found;
  for (std::size_t i : memory_order(tensors)) {
    if (found.empty() || !neighbours(found.back().back(), i)) found.emplace_back();
    found.back().push_back(i);
  }
  const auto earliest = [](const auto& members) { return *std::min_element(members.begin(), members.end()); };
  std::vector<std::pair<std::size_t, std::size_t>> ranked;
  for (std::size_t r = 0; r < found.size(); ++r) ranked.emplace_back(earliest(found[r]), r);
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::vector<std::size_t>> sorted;
  sorted.reserve(found.size());
  for (auto [first, r] : ranked) sorted.push_back(std::move(found[r]));
  return sorted;
}

inline int64_t total_numel(const std::vector<torch::Tensor>& tensors, const std::vector<std::size_t>& members) {
  return std::accumulate(members.begin(), members.end(), int64_t{0},
                         [&](int64_t sum, std::size_t i) { return sum + tensors[i].numel(); });
}

/// The members as one tensor: itself where it is one ordinary tensor, else a flat view.
inline torch::Tensor joined(const std::vector<torch::Tensor>& tensors, const std::vector<std::size_t>& members) {
  const torch::Tensor& first = tensors[members.front()];
  if (members.size() == 1 && first.is_contiguous()) return first;
  return flat_view(first, total_numel(tensors, members));
}

}  // namespace detail

/// Are the tensor's elements exactly a stretch of memory, each once, in whatever order of dimensions?
inline bool is_dense(const torch::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_non_overlapping_and_dense();
}

/// Do both have the same sizes and their elements in the same order in memory? Strides of dimensions of one element say
/// nothing.
inline bool same_layout(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.is_contiguous() && b.is_contiguous()) return a.sizes() == b.sizes();
  if (a.sizes() != b.sizes()) return false;
  for (int64_t d = 0; d < a.dim(); ++d)
    if (a.size(d) != 1 && a.stride(d) != b.stride(d)) return false;
  return true;
}

/// Finds the longest runs of parameters that are adjacent in storage together with their gradients and, if given, their
/// rounded copies, whatever the order of the lists (a flat home is often laid out in backward order). Tensors must be
/// dense, and those of one parameter of the same layout; tensors without elements belong to no run. The lists may
/// differ in dtype. The views share storage and keep it alive.
inline std::vector<Run> merge_adjacent(const std::vector<torch::Tensor>& params,
                                       const std::vector<torch::Tensor>& grads,
                                       const std::vector<torch::Tensor>& lows = {}) {
  const auto neighbours = [&](std::size_t a, std::size_t b) {
    return detail::follows(params[a], params[b]) && detail::follows(grads[a], grads[b]) &&
           (lows.empty() || detail::follows(lows[a], lows[b]));
  };
  std::vector<Run> runs;
  for (auto& members : detail::stretches(params, neighbours)) {
    torch::Tensor param = detail::joined(params, members), grad = detail::joined(grads, members);
    if (param.dim() != grad.dim()) {  // one of a pair has unusual strides where it has one element only
      param = detail::flat_view(param, param.numel());
      grad = detail::flat_view(grad, grad.numel());
    }
    torch::Tensor low = lows.empty() ? torch::Tensor() : detail::joined(lows, members);
    runs.push_back({std::move(param), std::move(grad), std::move(low), std::move(members)});
  }
  return runs;
}

/// The same for one list, for a norm, a clip or a zeroing: few flat tensors that hold every element once.
inline std::vector<torch::Tensor> merge_adjacent(const std::vector<torch::Tensor>& tensors) {
  const auto neighbours = [&](std::size_t a, std::size_t b) { return detail::follows(tensors[a], tensors[b]); };
  std::vector<torch::Tensor> merged;
  for (const auto& members : detail::stretches(tensors, neighbours))
    merged.push_back(detail::flat_view(tensors[members.front()], detail::total_numel(tensors, members)));
  return merged;
}

}  // namespace dovetail
