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
  /// Keeps the weights that masters start from: before the model is cast, which gives it other memory. Of what was cut
  /// that is this rank's part.
  void remember(RunContext& run) {
    originals_.clear();
    for (const Slot& slot : run.gradients.slots) {
      const auto cut = run.cut.find(slot.model);
      originals_.push_back(cut ? Original{cut->values(), true} : Original{slot.model.detach(), false});
    }
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
  struct Original {
    torch::Tensor values;
    bool is_piece;  ///< the one that `held` will stand for
  };

  /// The elements of the original that this rank's `held` stands for.
  static torch::Tensor piece_of(const Original& original, const Slot& slot) {
    const torch::Tensor& values = original.values;
    if (original.is_piece || slot.piece_begin < 0) return values;
    return values.as_strided({slot.held.numel()}, {1}, values.storage_offset() + slot.piece_begin);
  }

  std::vector<Original> originals_;
};

}  // namespace dovetail
