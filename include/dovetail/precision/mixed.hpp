// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/policy_base.hpp>
#include <dovetail/core/traits.hpp>
#include <dovetail/precision/scaler_options.hpp>
#include <string_view>

namespace dovetail {

/// Weights in fp32; the forward runs under autocast, which computes in bf16 where that is safe. bf16 has the range of
/// fp32, so the loss needs no scale.
struct BF16Mixed final : PrecisionBase {
  static constexpr std::string_view name = "bf16-mixed";
  static constexpr PrecisionTraits traits{.compute = Format::bf16, .accepts_closure = true};
};

/// Weights in fp32; the forward runs under autocast to fp16, the loss is scaled, and a step whose gradients overflow on
/// any rank is skipped on all of them.
struct FP16Mixed final : PrecisionBase {
  static constexpr std::string_view name = "fp16-mixed";
  static constexpr PrecisionTraits traits{.scaler = Scaler::collective, .compute = Format::fp16};

  using Options = ScalerOptions;
  Options options{};

  FP16Mixed() = default;
  constexpr explicit FP16Mixed(Options chosen) : options(chosen) {}
};

}  // namespace dovetail
