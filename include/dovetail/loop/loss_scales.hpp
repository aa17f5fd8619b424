// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/loop/agreement.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace dovetail {

/// The loss scales of a step: what each loss is multiplied by, what main gradients hold, and when scales move.
///
/// Usually there is one scaler, whose scale stands still within a window and moves once per step; then everything here
/// is a number or two. Where each loss has a scaler of its own, or the scale moves after every backward pass (Apex's
/// own behaviour), main gradients are brought from one scale to the next between two passes, so that what they hold is
/// one sum at one scale; with the default constants scales are powers of two, so no bit changes. Each pass is looked at
/// by itself then: what overflows in it is dropped, skips the optimizers that it belongs to at the end of the window,
/// and counts for its loss alone.
class LossScales {
 public:
  explicit LossScales(RunContext& run) : run_(run) {}

  /// Set-up is over.
  void prepare() {
    watches_ = run_.scaler && (!run_.further_scalers.empty() || run_.scale_per_backward);
    overflowed_.assign(watches_ ? std::size_t(losses()) : 0, 0.0);
    skipped_.assign(run_.optimizers.size(), 0);
  }

  /// How many losses have a scaler, and so a backward pass of their own; else all are summed into one.
  int losses() const { return 1 + int(run_.further_scalers.size()); }

  /// Before a backward pass: the scale of this loss, to which main gradients are brought.
  double begin_pass(int loss) {
    if (!run_.scaler) return 1.0;
    const double scale = scaler(loss).scale();
    if (run_.micro_batch > 0 && scale != held_)
      run_.gradients.for_each_flat([&](torch::Tensor& flat) { flat.mul_(scale / held_); });
    return held_ = scale;
  }

  /// A loss whose value is infinite.
  void note_infinite(int loss) {
    if (watches_) overflowed_[std::size_t(std::min(loss, losses() - 1))] = 1;
  }

  /// After a backward pass.
  void end_pass(int loss) {
    if (!watches_ || run_.at_boundary()) return;  // the window's last one is looked at when reduced
    for (std::size_t k = 0; k < skipped_.size(); ++k) {
      if (std::isfinite(run_.gradients.squared_norm(k))) continue;
      overflowed_[std::size_t(loss)] = skipped_[k] = 1;
      run_.gradients.for_each_flat(k, [](torch::Tensor& flat) { flat.zero_(); });
    }
    if (run_.scale_per_backward && loss + 1 == losses()) update_in_window();
  }

  /// Before the ranks agree: adds what was seen in single passes to what is known of the window.
  void add_to(StepFacts& facts) {
    if (!watches_) return;
    for (std::size_t k = 0; k < skipped_.size(); ++k) {
      if (!std::isfinite(facts.squared_norms[k])) overflowed_.back() = 1;
      if (skipped_[k]) facts.squared_norms[k] = HUGE_VAL;
    }
    facts.overflows = overflowed_;
  }

  /// What main gradients have been multiplied by.
  double held() const { return held_; }

  /// After a step, taken or skipped.
  /// @throws Error(numeric) where the smallest scale does not help
  void update(const StepFacts& facts, bool overflow) {
    if (!run_.scaler) return;
    for (int loss = 0; loss < losses(); ++loss)
      update(loss, watches_ ? facts.overflows[std::size_t(loss)] > 0 : overflow);
    start_window();
  }

  void start_window() {
    std::fill(overflowed_.begin(), overflowed_.end(), 0.0);
    std::fill(skipped_.begin(), skipped_.end(), char(0));
  }

 private:
  GradScaler& scaler(int loss) { return loss == 0 ? *run_.scaler : run_.further_scalers[std::size_t(loss) - 1]; }

  void update(int loss, bool overflow) {
    scaler(loss).update(overflow);
    if (scaler(loss).skipped_at_smallest() >= 10)
      throw Error(ExitCode::numeric,
                  "gradients overflowed at 10 steps in a row with the smallest loss scale, the last at attempt " +
                      std::to_string(run_.steps_attempted) +
                      ": the model diverges, or needs more range than fp16 has; use bf16-mixed.");
  }

  /// The same on every rank, so one small collective for each micro-batch but the last.
  void update_in_window() {
    std::vector<double> any = overflowed_;
    if (run_.world_size() > 1) {
      const auto all = run_.comm.all_gather(overflowed_);
      for (std::size_t i = 0; i < all.size(); ++i) any[i % any.size()] = std::max(any[i % any.size()], all[i]);
    }
    for (int loss = 0; loss < losses(); ++loss) update(loss, any[std::size_t(loss)] > 0);
    std::fill(overflowed_.begin(), overflowed_.end(), 0.0);
  }

  RunContext& run_;
  bool watches_ = false;
  double held_ = 1;
  std::vector<double> overflowed_;  // per loss, since its scale moved
  std::vector<char> skipped_;       // per optimizer, in this window
};

}  // namespace dovetail
