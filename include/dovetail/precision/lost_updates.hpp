// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/launch/warning.hpp>
#include <dovetail/run/context.hpp>

#include <cstdio>
#include <vector>

namespace dovetail {

/// Notices when a model that is stored in a low format stands still: an update of less than half a rounding step leaves
/// the weight as it was, and training goes on without a word. The 10th, 100th, 1000th, ... step is looked at; where
/// more than half of the elements that have a gradient did not move, rank 0 says so, once, and names the worst tensor.
///
/// An optimizer with fp32 masters loses nothing and is not looked at.
class LostUpdates {
 public:
  void before_step(const RunContext& run) {
    before_.clear();
    if (warned_ || run.rank() != 0 || !is_looked_at(run.steps_taken + 1)) return;
    torch::NoGradGuard no_grad;
    for (const Slot& slot : run.gradients.slots) before_.push_back(slot.held.detach().clone());
  }

  void after_step(const RunContext& run) {
    if (before_.empty()) return;
    torch::NoGradGuard no_grad;
    Share all, worst;
    const Slot* worst_slot = nullptr;
    for (std::size_t i = 0; i < before_.size(); ++i) {
      const Slot& slot = run.gradients.slots[i];
      if (slot.optimizer < 0) continue;
      const Share share = lost(before_[i], slot.held, slot.held.grad());
      all.lost += share.lost;
      all.updated += share.updated;
      if (share.updated > 0 && (!worst_slot || share.fraction() > worst.fraction())) worst = share, worst_slot = &slot;
    }
    before_.clear();
    if (!(all.fraction() > 0.5)) return;
    warned_ = true;
    warn(std::string(run.precision_name) + " loses updates: at step " + std::to_string(run.steps_taken) + " " +
         percent(all) + " of the elements with a gradient did not move, in '" + worst_slot->name + "' " +
         percent(worst) + ": their updates are below half a rounding step. Use MasterWeights, or a mixed precision.");
  }

 private:
  struct Share {
    int64_t lost = 0, updated = 0;
    double fraction() const { return updated ? double(lost) / double(updated) : 0; }
  };

  static bool is_looked_at(int64_t step) {
    while (step > 10 && step % 10 == 0) step /= 10;
    return step == 10;
  }

  static Share lost(const torch::Tensor& before, const torch::Tensor& after, const torch::Tensor& gradient) {
    if (!gradient.defined() || before.numel() == 0) return {};
    const torch::Tensor updated = gradient.detach().ne(0).logical_and_(gradient.detach().isfinite());
    return {updated.logical_and(before.eq(after.detach())).sum().item<int64_t>(), updated.sum().item<int64_t>()};
  }

  static std::string percent(const Share& share) {
    char text[16];
    std::snprintf(text, sizeof text, "%.0f %%", 100 * share.fraction());
    return text;
  }

  std::vector<torch::Tensor> before_;
  bool warned_ = false;
};

}  // namespace dovetail
