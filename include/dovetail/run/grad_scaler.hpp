// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/launch/error.hpp>
#include <dovetail/precision/scaler_options.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

namespace dovetail {

/// The dynamic loss scale of fp16 training: constants and update rule of torch.amp.GradScaler, updated once per step.
/// Powers of two, so that scaling changes no bit of a gradient that neither over- nor underflows. Numbers only: who
/// scales, checks and skips is the step itself.
class GradScaler {
 public:
  /// Below this a smaller scale cannot help: gradients overflow by themselves.
  static constexpr double smallest_scale = 1.0 / 65536;
  static constexpr double largest_scale = 0x1p126;  ///< finite in fp32

  /// Everything that changes.
  struct State {
    double scale = 65536;
    int64_t growth_tracker = 0;       ///< good steps in a row since the scale moved
    int64_t skipped_at_smallest = 0;  ///< overflows in a row with the smallest scale
  };

  /// @param largest  the scale does not grow beyond it
  /// @throws Error(arguments) for constants with which no scale works
  explicit GradScaler(ScalerOptions options = {}, double largest = largest_scale)
      : options_(options), largest_(largest), scale_(std::min(options.init, largest)) {
    const auto require = [](bool holds, const char* what, double value) {
      if (!holds)
        throw Error(ExitCode::arguments,
                    std::string("the loss scaler's ") + what + ", but it is " + std::to_string(value) + ".");
    };
    require(options.init >= smallest_scale && options.init <= largest_scale,
            "init must be a finite number from 2^-16 on", options.init);
    require(options.growth >= 1 && std::isfinite(options.growth), "growth must be at least 1", options.growth);
    require(options.backoff > 0 && options.backoff < 1, "backoff must be between 0 and 1", options.backoff);
    require(options.interval >= 1, "interval must be at least 1 step", options.interval);
  }

  double scale() const { return scale_; }
  int64_t skipped_at_smallest() const { return skipped_at_smallest_; }  ///< in a row

  State state() const { return {scale_, tracker_, skipped_at_smallest_}; }

  /// Goes on where another scaler was. Its constants may be others: a count of good steps that has reached the interval
  /// of this one grows the scale at the next good step. (PyTorch's, which asks whether they are equal, would not grow
  /// it before the next overflow.)
  /// @throws Error(checkpoint) for what no scaler can have been in
  void load(const State& state) {
    if (!(state.scale >= smallest_scale && state.scale <= largest_scale) || state.growth_tracker < 0 ||
        state.skipped_at_smallest < 0)
      throw Error(ExitCode::checkpoint,
                  "the saved state of a loss scaler has the scale " + std::to_string(state.scale) + " after " +
                      std::to_string(state.growth_tracker) +
                      " good steps: it is not what a scaler saves; start from another checkpoint.");
    scale_ = std::min(state.scale, largest_);
    tracker_ = state.growth_tracker;
    skipped_at_smallest_ = state.skipped_at_smallest;
  }

  /// After each step: backs off if some gradient overflowed (the same answer on every rank), else grows when due.
  void update(bool overflow) {
    if (overflow) {
      skipped_at_smallest_ = scale_ <= smallest_scale ? skipped_at_smallest_ + 1 : 0;
      scale_ = std::max(scale_ * options_.backoff, smallest_scale);
      tracker_ = 0;
      return;
    }
    skipped_at_smallest_ = 0;
    if (++tracker_ >= options_.interval) {
      scale_ = std::min(scale_ * options_.growth, largest_);
      tracker_ = 0;
    }
  }

 private:
  ScalerOptions options_;
  double largest_, scale_;
  int64_t tracker_ = 0, skipped_at_smallest_ = 0;
};

}  // namespace dovetail
