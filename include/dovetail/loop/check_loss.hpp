// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/loop/agreement.hpp>

#include <cmath>
#include <string>

namespace dovetail {

/// Ends the run because of what the Task did in this step.
[[noreturn]] inline void refuse_step(const RunContext& run, const std::string& what, const std::string& cure) {
  throw Error(ExitCode::user_code, what + " at step " + std::to_string(run.steps_taken) + " on rank " +
                                       std::to_string(run.rank()) + ": " + cure);
}

/// Refuses what cannot be a loss, before its value is looked at.
/// @throws Error(user_code)
inline void check_loss(const RunContext& run, const torch::Tensor& loss, double weight) {
  if (!loss.defined())
    refuse_step(run, "training_step returned an undefined tensor", "return the loss, a tensor of one element.");
  if (loss.numel() != 1)
    refuse_step(run, "training_step returned a tensor of " + std::to_string(loss.numel()) + " elements",
                "return one number, the mean over the batch.");
  if (!loss.is_floating_point())
    refuse_step(run, std::string("training_step returned a loss of dtype ") + c10::toString(loss.scalar_type()),
                "return a real floating-point number.");
  if (!loss.requires_grad())
    refuse_step(run, "training_step returned a loss that depends on no parameter",
                "compute it from the model's output, without detach or NoGradGuard.");
  if (!(weight >= 0 && std::isfinite(weight)))
    refuse_step(run, "the weight of a batch is " + std::to_string(weight),
                "give step.weight a finite number from 0 on.");
}

/// Ends the run on every rank where a loss is NaN, or infinite without a scaler that could cure it.
/// @throws Error(numeric)
inline void stop_on_bad_loss(const RunContext& run, const StepFacts& facts) {
  const int rank = facts.nan_rank >= 0 ? facts.nan_rank : run.scaler ? -1 : facts.infinite_rank;
  if (rank < 0) return;
  throw Error(ExitCode::numeric, std::string("the loss is ") + (facts.nan_rank >= 0 ? "NaN" : "infinite") +
                                     " at step " + std::to_string(run.steps_taken) + " (epoch " +
                                     std::to_string(run.epoch) + ") on rank " + std::to_string(rank) +
                                     ": lower the learning rate, clip gradients, or look at that batch.");
}

}  // namespace dovetail
