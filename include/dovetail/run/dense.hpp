// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/context.hpp>
#include <dovetail/shard/flat_home.hpp>

#include <map>
#include <unordered_set>

namespace dovetail {

/// The dtype in which gradients of parameters of dtype `stored` are accumulated, reduced and clipped.
inline torch::ScalarType main_dtype_of(torch::ScalarType stored) {
  return stored == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}

/// Refuses a parameter that cannot be moved into a flat buffer as it lies.
/// @throws Error(user_code)
inline void require_dense(const Slot& slot) {
  if (!slot.model.is_non_overlapping_and_dense())
    throw Error(ExitCode::user_code, "parameter '" + slot.name +
                                         "' is not dense in memory (expanded, or a view with gaps): make it "
                                         "contiguous in configure_model.");
}

/// Refuses a training_step that runs backward by itself: its gradients would count twice.
/// @throws Error(user_code)
[[noreturn]] inline void refuse_touched(const Slot& slot) {
  throw Error(ExitCode::user_code,
              "the parameter '" + slot.name +
                  "' has a gradient before the run's own backward: training_step must return the loss and leave "
                  "backward, zero_grad and the optimizer's step to the run.");
}

/// One slot for each trainable parameter of a module, tied ones once, in the order of registration.
inline std::vector<Slot> slots_of(const torch::nn::Module& module) {
  std::unordered_set<c10::TensorImpl*> seen;
  std::vector<Slot> slots;
  for (const auto& item : module.named_parameters()) {
    const torch::Tensor& tensor = item.value();
    if (!tensor.requires_grad() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    Slot slot;
    slot.name = item.key();
    slot.shape = tensor.sizes().vec();
    slot.model = tensor;
    slots.push_back(std::move(slot));
  }
  return slots;
}

inline void collect_slots(RunContext& run) {
  run.gradients.slots = slots_of(*run.module);
}

/// The first names, quoted, and how many more there are.
template <class SlotPointer>
std::string names_of(const std::vector<SlotPointer>& slots) {
  std::string names;
  for (std::size_t i = 0; i < std::min<std::size_t>(slots.size(), 4); ++i)
    names += (i == 0 ? "'" : ", '") + slots[i]->name + "'";
  return slots.size() > 4 ? names + " and " + std::to_string(slots.size() - 4) + " more" : names;
}

/// Lets the optimizer hold whole parameters. One of a low format gets an alias that shares its data: the parameter's
/// own gradient is the fp32 accumulator, the alias's is what the optimizer reads.
inline void hold_whole_parameters(RunContext& run) {
  for (Slot& slot : run.gradients.slots) {
    const bool low = main_dtype_of(slot.model.scalar_type()) != slot.model.scalar_type();
    slot.held = low ? slot.model.detach().requires_grad_(true) : slot.model;
    slot.stepped = slot.held;
  }
}

namespace detail {

/// Above this many elements autograd's own gradient is cheaper than adding into a view of a flat buffer.
inline constexpr int64_t small_tensor = 1 << 16;

/// Moves whole parameters of one dtype, and what optimizers hold of them, into one buffer, and gives them their main
/// gradients in another one, in the same order. Returns the latter.
inline torch::Tensor lay_out(const std::vector<Slot*>& slots, const FlatLayout& layout) {
  std::vector<torch::Tensor> models;
  for (Slot* slot : slots) models.push_back(slot->model);
  const auto options = models.front().options().requires_grad(false);
  const torch::Tensor data = torch::empty({layout.size()}, options);
  const torch::Tensor gradient =
      torch::zeros({layout.size()}, options.dtype(main_dtype_of(models.front().scalar_type())));
  move_into(data, layout, models);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = *slots[i];
    if (!slot.held.is_same(slot.model)) slot.held.set_data(alias_like(data, layout.offset(i), slot.model));
    slot.main = alias_like(gradient, layout.offset(i), slot.model);
  }
  return gradient;
}

/// Puts the slots of one dtype into a flat home, into which autograd adds.
inline void give_home(RunContext& run, const std::vector<Slot*>& slots) {
  if (slots.empty()) return;
  std::vector<int64_t> numels;
  for (const Slot* slot : slots) numels.push_back(slot->model.numel());
  run.gradients.buffers.push_back(lay_out(slots, FlatLayout(numels, 1)));
  for (Slot* slot : slots) slot->model.mutable_grad() = slot->arrivals = slot->main;
}

}  // namespace detail

/// Gives whole parameters their main gradients where something is to be done with gradients before the step: reduced
/// over ranks, clipped, checked for overflow, or accumulated in a higher format. Elsewhere autograd keeps its own.
inline void attach_dense_gradients(RunContext& run) {
  const bool reduced = run.world_size() > 1;
  const bool handled = reduced || run.options.gradient_clip || run.scaler;
  std::map<torch::ScalarType, std::vector<Slot*>> homes;
  for (Slot& slot : run.gradients.slots) {
    require_dense(slot);
    const torch::ScalarType dtype = slot.model.scalar_type();
    const bool low = main_dtype_of(dtype) != dtype;
    const bool small = slot.model.numel() <= detail::small_tensor;
    if (low || reduced || (handled && small)) homes[dtype].push_back(&slot);
  }
  for (auto& [dtype, slots] : homes) detail::give_home(run, slots);
}

inline void StrategyBase::attach_gradients(StrategyContext& run) {
  attach_dense_gradients(run);
}

}  // namespace dovetail
