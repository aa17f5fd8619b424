// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/loop/compare_ranks.hpp>

#include <sstream>

namespace dovetail {

/// Ranks must have built the same model: names, shapes, dtypes and what is trainable are compared before anything else
/// is sent, and rank 0's weights and buffers go to all where they differ, as DistributedDataParallel does it.
/// @throws Error(ranks_disagree) naming the first rank that differs
inline void compare_models(RunContext& run) {
  if (run.world_size() == 1) return;
  torch::NoGradGuard no_grad;
  std::ostringstream structure;
  double sum = 0;
  std::vector<torch::Tensor> tensors;
  const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
    structure << name << ' ' << tensor.sizes() << ' ' << tensor.scalar_type() << ' ' << tensor.requires_grad() << '\n';
    // Weighted by position, so that a permutation of the same numbers gives another sum.
    torch::Tensor flat = tensor.detach().flatten();
    if (flat.is_complex()) flat = torch::view_as_real(flat).flatten();
    flat = flat.to(torch::kFloat64);
    const torch::Tensor position = torch::arange(1, flat.numel() + 1, flat.options());
    sum += double(tensors.size() + 1) * flat.mul(position).sum().item<double>();
    tensors.push_back(tensor.detach());
  };
  for (const auto& item : run.module->named_parameters()) add(item.key(), item.value());
  for (const auto& item : run.module->named_buffers()) add(item.key(), item.value());

  compare_lines(run.comm, structure.str(), "built another model than", "configure_model must not depend on the rank.");
  bool same = true;
  for (double other : run.comm.all_gather(std::span<const double>(&sum, 1)))
    same &= other == sum || (std::isnan(other) && std::isnan(sum));
  const double flag = same;
  for (double other : run.comm.all_gather(std::span<const double>(&flag, 1))) same &= other != 0;
  if (same) return;
  for (torch::Tensor& tensor : tensors)
    if (tensor.numel() > 0) run.comm.broadcast(tensor, 0);
}

}  // namespace dovetail
