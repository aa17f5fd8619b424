// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/context.hpp>
#include <dovetail/shard/flat_home.hpp>

#include <map>
#include <unordered_map>

namespace dovetail {
namespace detail {

/// Slots that have a main gradient and elements on this rank, by the dtype of what is stepped, in the order in which
/// their main gradients lie in memory: what is laid out in this order is adjacent where its gradients are.
inline std::map<torch::ScalarType, std::vector<Slot*>> by_memory_of_mains(std::vector<Slot>& slots) {
  std::map<torch::ScalarType, std::vector<Slot*>> groups;
  for (Slot& slot : slots)
    if (slot.main.defined() && slot.stepped.numel() > 0) groups[slot.stepped.scalar_type()].push_back(&slot);
  for (auto& [dtype, group] : groups)
    std::stable_sort(group.begin(), group.end(), [](const Slot* a, const Slot* b) {
      return std::less<const void*>{}(a->main.const_data_ptr(), b->main.const_data_ptr());
    });
  return groups;
}

/// Moves masters beside each other, so that one pass steps many.
inline void pack_masters(std::vector<Slot*> slots) {
  std::erase_if(slots, [](const Slot* slot) { return slot->stepped.is_same(slot->held); });
  if (slots.empty()) return;
  std::vector<torch::Tensor> masters;
  for (const Slot* slot : slots) masters.push_back(slot->stepped);
  const FlatLayout layout(numels_of(masters), 1);
  move_into(torch::empty({layout.size()}, masters.front().options().requires_grad(false)), layout, masters);
}

/// Gives what is stepped its gradient: the main gradient itself, or a buffer of the lower format that it is cast into.
inline void give_gradients(const std::vector<Slot*>& slots) {
  std::vector<Slot*> lower;
  for (Slot* slot : slots) {
    if (slot->stepped.scalar_type() == slot->main.scalar_type())
      slot->stepped.mutable_grad() = slot->main;
    else
      lower.push_back(slot);
  }
  if (lower.empty()) return;
  std::vector<torch::Tensor> stepped;
  for (const Slot* slot : lower) stepped.push_back(slot->stepped);
  const FlatLayout layout(numels_of(stepped), 1);
  const torch::Tensor buffer = torch::zeros({layout.size()}, stepped.front().options().requires_grad(false));
  for (std::size_t i = 0; i < lower.size(); ++i)
    lower[i]->stepped.mutable_grad() = view_like(buffer, layout.offset(i), stepped[i]);
}

}  // namespace detail

/// Notes which optimizer steps which slot. What no optimizer holds is trained by nobody and counts in no norm.
inline void find_optimizers(RunContext& run) {
  std::unordered_map<c10::TensorImpl*, int> owner;
  for (std::size_t k = 0; k < run.optimizers.size(); ++k)
    for (auto& group : run.optimizers[k].base().param_groups())
      for (const torch::Tensor& tensor : group.params()) owner.emplace(tensor.unsafeGetTensorImpl(), int(k));
  for (Slot& slot : run.gradients.slots) {
    const auto found = owner.find(slot.stepped.unsafeGetTensorImpl());
    slot.optimizer = found == owner.end() ? -1 : found->second;
  }
}

/// Lets optimizers step what is stepped in the place of what they were given: masters for weights of a low format, this
/// rank's pieces for whole parameters.
inline void hand_over(RunContext& run) {
  Exchanges exchanges;
  std::vector<int> before;
  for (const Slot& slot : run.gradients.slots) {
    before.push_back(slot.optimizer);
    for (const torch::Tensor& given : {slot.model, slot.held})
      exchanges.insert_or_assign(given.unsafeGetTensorImpl(), Parameter{slot.name, slot.shape, slot.stepped});
  }
  for (OptimizerEntry& optimizer : run.optimizers) optimizer.exchange(exchanges);
  find_optimizers(run);
  for (std::size_t i = 0; i < before.size(); ++i) {
    const Slot& slot = run.gradients.slots[i];
    if (slot.optimizer != before[i] && slot.optimizer >= 0 && !slot.stepped.is_same(slot.held))
      run.optimizers[std::size_t(slot.optimizer)].publish_into(slot.stepped, slot.held);
  }
}

/// The end of set-up: connects what is accumulated with what is stepped. Nothing moves in memory after this.
inline void bind_gradients(RunContext& run) {
  find_optimizers(run);
  for (auto& [dtype, slots] : detail::by_memory_of_mains(run.gradients.slots)) {
    detail::pack_masters(slots);
    detail::give_gradients(slots);
  }
  run.gradients.finish(run.optimizers.size());
  run.gradients.nothing_arrives();
  run.optimizers.rebind();
}

}  // namespace dovetail
