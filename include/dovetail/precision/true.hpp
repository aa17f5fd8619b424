// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/policy_base.hpp>
#include <dovetail/core/traits.hpp>
#include <string_view>

namespace dovetail {

/// Weights, activations and optimizer state in bf16; gradients are accumulated in fp32 and rounded for the step.
/// Updates below 2^-9 of a weight are lost; a run that loses more than half of them says so once. `MasterWeights<BF16>`
/// keeps them.
struct BF16True final : PrecisionBase {
  static constexpr std::string_view name = "bf16-true";
  static constexpr PrecisionTraits traits{.compute = Format::bf16, .storage = Format::bf16, .accepts_closure = true};
};

/// Weights, activations and optimizer state in fp16, without a loss scaler: gradients below 6e-8 become zero and sums
/// above 65504 become infinite, which is the user's own risk. `MasterWeights<FP16>` is the safe form.
struct FP16True final : PrecisionBase {
  static constexpr std::string_view name = "fp16-true";
  static constexpr PrecisionTraits traits{.compute = Format::fp16, .storage = Format::fp16};
};

}  // namespace dovetail
