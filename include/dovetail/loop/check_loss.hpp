// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/context.hpp>

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
  if (!loss.requires_grad())
    refuse_step(run, "training_step returned a loss that depends on no parameter",
                "compute it from the model's output, without detach or NoGradGuard.");
  if (!(weight >= 0 && std::isfinite(weight)))
    refuse_step(run, "the weight of a batch is " + std::to_string(weight),
                "give step.weight a finite number from 0 on.");
}

}  // namespace dovetail
