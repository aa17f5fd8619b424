// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/loop/agreement.hpp>
#include <dovetail/loop/state.hpp>

#include <cmath>

namespace dovetail {

/// Clips main gradients, which hold the sums times `divisor`, and hands the optimizers' tensors what they read. Returns
/// the divisor that the optimizers still have to apply. Notes the norm where the ranks agreed on one.
inline double clip_and_cast(RunContext& run, const StepFacts& facts, double divisor, LoopState& state) {
  const auto& clip = run.options.gradient_clip;
  if (!facts.squared_norms.empty()) {
    double squared = 0;
    for (double norm : facts.squared_norms)
      if (std::isfinite(norm)) squared += norm;
    state.gradient_norm = std::sqrt(squared) / divisor;
    if (clip && clip->kind == ClipOptions::Kind::norm) divisor /= clip_coefficient(state.gradient_norm, clip->limit);
  }
  if (clip && clip->kind == ClipOptions::Kind::value) {
    run.gradients.for_each_flat([&](torch::Tensor& flat) {
      if (divisor != 1.0) flat.div_(divisor);
      flat.clamp_(-clip->limit, clip->limit);
    });
    divisor = 1.0;
  }
  if (run.gradients.needs_casts()) {
    if (divisor != 1.0) run.gradients.for_each_flat([&](torch::Tensor& flat) { flat.div_(divisor); });
    run.gradients.cast();
    divisor = 1.0;
  }
  return divisor;
}

}  // namespace dovetail
