// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/bind.hpp>

#include <vector>

namespace dovetail {

/// fp32 master weights beside a model of a low format. The optimizer steps the masters, the model gets them rounded: by
/// our optimizers in the pass that steps them, after LibTorch's by a pass of its own.
///
/// They start from the weights as they were before the cast, so nothing is lost that the model once had. (Apex clones
/// them after the cast, which its own source regrets; so does apex_literal.) Under a sharding strategy each rank has
/// masters of its pieces only.
class Masters {
 public:
  /// Before the model is cast: remembers the weights that masters start from.
  void remember(RunContext& run) {
    originals_.clear();
    for (const Slot& slot : run.gradients.slots) originals_.push_back(slot.model.detach().clone());
  }

  /// Once optimizers exist and hold what is theirs: puts masters in the place of the low-format tensors. What no
  /// optimizer holds has a master too, for a group that is added later.
  void wrap(RunContext& run) {
    torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < run.gradients.slots.size(); ++i) {
      Slot& slot = run.gradients.slots[i];
      if (slot.held.scalar_type() == torch::kFloat32 || slot.held.scalar_type() == torch::kFloat64) continue;
      slot.stepped = piece_of(originals_[i], slot)
                         .to(slot.held.device(), torch::kFloat32, false, /*copy=*/true)
                         .requires_grad_(true);
    }
    originals_.clear();
    hand_over(run);
  }

 private:
  /// The elements of the original that this rank's `held` stands for.
  static torch::Tensor piece_of(const torch::Tensor& original, const Slot& slot) {
    if (slot.piece_begin < 0) return original;
    return original.as_strided({slot.held.numel()}, {1}, original.storage_offset() + slot.piece_begin);
  }

  std::vector<torch::Tensor> originals_;
};

}  // namespace dovetail
