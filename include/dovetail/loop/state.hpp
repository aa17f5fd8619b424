// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/loop/metrics.hpp>
#include <dovetail/run/context.hpp>

#include <string>

namespace dovetail {

/// What callbacks see of a run, and how they end it.
class LoopState {
 public:
  explicit LoopState(RunContext& run) : run(run) {}
  LoopState(const LoopState&) = delete;  // what a callback asks of a copy would be lost

  RunContext& run;

  // Where the loop is.
  int64_t epoch() const { return run.epoch; }       ///< from 0
  int64_t step() const { return run.steps_taken; }  ///< optimizer steps taken
  int64_t batch = 0;                                ///< micro-batches of this rank done in this epoch
  int64_t batches_per_epoch = 0;
  int64_t validation_batches = 0;  ///< per validation run and rank
  int64_t samples = 0;             ///< weight of what was trained on in this epoch, all ranks together: samples, unless
                                   ///< step.weight said otherwise
  bool sanity = false;             ///< is this the validation before the first step?
  std::string plan;  ///< the plan in words: what describe() gives and, with several ranks, what a step sends

  // What came out, reduced over ranks: the same on every rank.
  double loss = 0;            ///< of the last step: mean over the samples of its window
  double gradient_norm = -1;  ///< of the last step, before clipping; -1 where nobody asked for it
  bool step_skipped = false;  ///< gradients of the last step were not finite
  MetricsRow train;           ///< means since the last row for loggers
  MetricsRow validation;      ///< of the last validation

  /// Ends the fit: no further step is taken. The first reason stays. One rank is enough: the others hear of it with the
  /// next step's agreement, before that step is taken.
  void stop(std::string reason) {
    if (stop_reason_.empty()) stop_reason_ = std::move(reason);
  }
  bool stopping() const { return !stop_reason_.empty(); }
  const std::string& stop_reason() const { return stop_reason_; }

  /// The loop: do all ranks know of it?
  bool stop_is_agreed() const { return stop_is_agreed_ || (run.world_size() == 1 && stopping()); }
  void agree_to_stop(int rank) {
    stop_is_agreed_ = true;
    stop("rank " + std::to_string(rank) + " asked to stop");
  }

 private:
  std::string stop_reason_;
  bool stop_is_agreed_ = false;
};

}  // namespace dovetail
