// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/context.hpp>

#include <utility>
#include <vector>

namespace dovetail {

namespace detail {

/// Packs tensors into one flat tensor of `wide` format, lets `exchange` work on it, and writes what comes back.
template <class Exchange>
void through_flat(const std::vector<torch::Tensor>& tensors, torch::ScalarType wide, Exchange&& exchange) {
  if (tensors.empty()) return;
  std::vector<torch::Tensor> pieces;
  for (const torch::Tensor& tensor : tensors) pieces.push_back(tensor.reshape({-1}).to(wide));
  torch::Tensor flat = torch::cat(pieces);
  exchange(flat);
  int64_t offset = 0;
  for (const torch::Tensor& tensor : tensors) {
    tensor.copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

}  // namespace detail

/// Makes the model's buffers the same on every rank: floating ones are averaged, others are taken from rank 0. Done
/// before validation and at the end, never per forward: in between each rank's batch statistics are its own.
///
/// Means are taken in fp64, so a buffer of fp32 or less that is equal on all ranks stays as it is to the bit, and a
/// mask of the lowest value does not overflow. At most two collectives, however many buffers there are.
inline void synchronize_buffers(RunContext& run) {
  if (run.world_size() == 1) return;
  torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> averaged, copied;
  for (auto& item : run.module->named_buffers()) {
    torch::Tensor buffer = item.value().detach();
    if (!buffer.defined() || buffer.numel() == 0) continue;
    if (buffer.layout() != torch::kStrided || !buffer.is_non_overlapping_and_dense())
      throw Error(ExitCode::user_code,
                  "the buffer '" + item.key() +
                      "' is sparse, or expanded, or has gaps in memory: with several ranks it must "
                      "be dense; register buffer.to_dense() or buffer.contiguous().");
    if (buffer.is_complex()) buffer = torch::view_as_real(buffer);
    (buffer.is_floating_point() ? averaged : copied).push_back(std::move(buffer));
  }
  detail::through_flat(averaged, torch::kFloat64, [&](torch::Tensor& flat) {
    run.options.deterministic ? run.comm.all_reduce_deterministic(flat) : run.comm.all_reduce(flat);
    flat.div_(run.world_size());
  });
  detail::through_flat(copied, torch::kInt64, [&](torch::Tensor& flat) { run.comm.broadcast(flat, 0); });
}

}  // namespace dovetail
