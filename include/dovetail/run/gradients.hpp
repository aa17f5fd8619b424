// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/fingerprint.hpp>
#include <dovetail/optim/adjacent.hpp>
#include <dovetail/optim/clip.hpp>
#include <dovetail/run/slot.hpp>
#include <dovetail/shard/flat_home.hpp>

#include <cmath>

namespace dovetail {

/// The main gradients of a run: what is accumulated is what is reduced, checked, clipped and stepped with.
///
/// They hold the sum over micro-batches (and, once reduced, over ranks) of the gradients of
/// loss x n / n_nominal x loss_scale, in fp32 (fp64 for fp64 models). One divisor undoes all of it at the step.
class MainGradients {
 public:
  std::vector<Slot> slots;
  std::vector<torch::Tensor> buffers;  ///< what autograd adds into, zeroed after each step
  int shard_group = 1;  ///< neighbouring ranks, of which each holds a part: squared norms add up over them
  bool summed = false;  ///< since the last step: do they hold the sum over ranks?

  /// To be called when slots, mains and the optimizers' choice are final: groups mains into few flat tensors.
  void finish(std::size_t optimizers) {
    flats_.assign(optimizers, {});
    autograd_owned_.assign(optimizers, {});
    casts_.clear();
    for (std::size_t k = 0; k < optimizers; ++k) {
      std::vector<torch::Tensor> mains, casts_from, casts_to;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        Slot& slot = slots[i];
        if (slot.optimizer != int(k) || slot.held.numel() == 0) continue;
        if (!slot.main.defined()) {
          autograd_owned_[k].push_back(i);
          continue;
        }
        mains.push_back(slot.main);
        if (slot.stepped.scalar_type() != slot.main.scalar_type()) {
          casts_from.push_back(slot.main);
          casts_to.push_back(slot.stepped.grad());
        }
      }
      flats_[k] = merge_adjacent(mains);
      for (auto& run : merge_adjacent(casts_from, casts_to)) casts_.push_back({run.param, run.grad});
    }
  }

  /// Squared norm over what `optimizer` steps, accumulated in double: non-finite exactly if some gradient is.
  double squared_norm(std::size_t optimizer) {
    double total = dovetail::squared_norm(flats_[optimizer]);
    for (std::size_t i : autograd_owned_[optimizer]) {
      torch::Tensor& gradient = slots[i].held.mutable_grad();
      if (!gradient.defined()) continue;
      make_dense(gradient);
      total += dovetail::squared_norm(gradient);
    }
    return total;
  }

  /// Applies `visit` to every flat tensor of gradients that `optimizer` steps with, each element once.
  template <class Visit>
  void for_each_flat(std::size_t optimizer, Visit&& visit) {
    for (torch::Tensor& flat : flats_[optimizer]) visit(flat);
    for (std::size_t i : autograd_owned_[optimizer])
      if (torch::Tensor& gradient = slots[i].held.mutable_grad(); gradient.defined()) visit(gradient);
  }

  /// The same for all optimizers.
  template <class Visit>
  void for_each_flat(Visit&& visit) {
    for (std::size_t k = 0; k < flats_.size(); ++k) for_each_flat(k, visit);
  }

  /// Must gradients be cast to a lower format before the optimizer may read them?
  bool needs_casts() const { return !casts_.empty(); }

  /// Casts main gradients to what the optimizer's tensors want. They must have been divided before.
  void cast() {
    for (auto& [main, gradient] : casts_) gradient.copy_(main);
  }

  /// After a step, taken or skipped.
  void zero() {
    for (torch::Tensor& buffer : buffers) buffer.zero_();
    for (Slot& slot : slots) {
      slot.frozen = 0;
      slot.taken = false;
      if (!slot.main.defined()) slot.model.mutable_grad().reset();
    }
    backwards_ = 0;
    summed = false;
  }

  /// Before each backward: notes what of the model is frozen for now.
  void note_frozen() {
    ++backwards_;
    for (Slot& slot : slots) slot.frozen += !slot.model.requires_grad();
  }

  /// Of this window, so far: one for each micro-batch, or for each loss of it.
  int64_t backwards() const { return backwards_; }

  /// Of what was frozen in this window, and in how many backward passes.
  uint64_t frozen_fingerprint() const {
    Fingerprint frozen;
    for (std::size_t i = 0; i < slots.size(); ++i)
      if (slots[i].frozen > 0) {
        frozen.add(i);
        frozen.add(uint64_t(slots[i].frozen));
      }
    return frozen.value();
  }

  /// What main gradients are now is no arrival: a reduction may have written to them.
  void nothing_arrives() {
    for (Slot& slot : slots)
      if (slot.arrivals.defined()) slot.seen_version = slot.arrivals._version();
  }

  /// Notes for every slot whether a gradient arrived since the last call, and returns how many did not of those that
  /// were to have one. What autograd keeps is dense after it.
  int64_t count_missing() {
    int64_t missing = 0;
    for (Slot& slot : slots) {
      if (slot.arrivals.defined()) {
        const uint32_t version = slot.arrivals.unsafeGetTensorImpl()->version_counter().current_version();
        slot.arrived = version != slot.seen_version;
        slot.seen_version = version;
      } else if (!slot.main.defined()) {
        torch::Tensor& gradient = slot.model.mutable_grad();
        slot.arrived = gradient.defined();
        if (slot.arrived) make_dense(gradient);
      } else {
        slot.arrived = slot.taken;
      }
      slot.rests = !slot.arrived && backwards_ > 0 && slot.frozen == backwards_;
      missing += !slot.arrived && !slot.rests;
    }
    return missing;
  }

 private:
  std::vector<std::vector<torch::Tensor>> flats_;               // per optimizer
  std::vector<std::vector<std::size_t>> autograd_owned_;        // per optimizer, indices of slots
  std::vector<std::pair<torch::Tensor, torch::Tensor>> casts_;  // main -> gradient of the optimizer's tensor
  int64_t backwards_ = 0;
};

}  // namespace dovetail
