// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/context.hpp>

#include <unordered_map>
#include <unordered_set>

namespace dovetail {

/// The fp32 masters that this rank's optimizers step, by name, in the order of the model; empty where there are none.
/// They are the tensors themselves. Under a sharding strategy they are this rank's pieces.
inline Parameters masters(const RunContext& run) {
  Parameters masters;
  for (const Slot& slot : run.gradients.slots)
    if (!slot.stepped.is_same(slot.held)) masters.push_back({slot.name, slot.shape, slot.stepped});
  return masters;
}

/// After masters were changed from outside, by a checkpoint that is loaded say: rounds them into what the model, or the
/// strategy's piece of it, holds. A step rounds by itself.
inline void round_masters(RunContext& run) {
  torch::NoGradGuard no_grad;
  for (Slot& slot : run.gradients.slots)
    if (!slot.stepped.is_same(slot.held)) slot.held.copy_(slot.stepped);
}

/// All parameters and buffers of the model by name, with copies of their values: what is trained from its master where
/// there is one, and nothing in a format below fp32. Under a strategy that shards, what is trained is this rank's
/// pieces.
inline Parameters fp32_weights(const RunContext& run) {
  std::unordered_map<const c10::TensorImpl*, const Slot*> slots;
  for (const Slot& slot : run.gradients.slots) slots.emplace(slot.model.unsafeGetTensorImpl(), &slot);
  std::unordered_set<const c10::TensorImpl*> seen;
  Parameters weights;
  const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
    if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) return;
    const auto found = slots.find(tensor.unsafeGetTensorImpl());
    const torch::Tensor value = (found == slots.end() ? tensor : found->second->stepped).detach();
    const bool low = value.is_floating_point() && value.scalar_type() != torch::kFloat64;
    weights.push_back({name, found == slots.end() ? tensor.sizes().vec() : found->second->shape,
                       low ? value.to(torch::kFloat32, /*non_blocking=*/false, /*copy=*/true) : value.clone()});
  };
  for (const auto& item : run.module->named_parameters()) add(item.key(), item.value());
  for (const auto& item : run.module->named_buffers()) add(item.key(), item.value());
  return weights;
}

}  // namespace dovetail
