// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/policy_base.hpp>
#include <dovetail/core/traits.hpp>
#include <dovetail/precision/scaler_options.hpp>
#include <string_view>
#include <type_traits>

namespace dovetail {

// The optimization levels of NVIDIA Apex's amp, as types for `Apex<L>`. They are no precisions themselves.

/// fp32 throughout: the reference of the family.
struct O0 {
  static constexpr unsigned optimization_level = 0;
};
/// fp32 weights, operators cast by lists.
struct O1 {
  static constexpr unsigned optimization_level = 1;
};
/// fp16 weights but for batch norm, fp32 masters beside the optimizer.
struct O2 {
  static constexpr unsigned optimization_level = 2;
};
/// fp16 throughout, no masters.
struct O3 {
  static constexpr unsigned optimization_level = 3;
};

/// Apex's mixed precision: its casts, its fp32 masters, its scaler. It wraps the optimizers of the whole model, before
/// a Strategy wraps that model, so it fits no Strategy that makes optimizers from shards; `MasterWeights` does.
template <class L>
struct Apex final : PrecisionBase {
  static constexpr bool arguments_fit =
      std::is_same_v<L, O0> || std::is_same_v<L, O1> || std::is_same_v<L, O2> || std::is_same_v<L, O3>;

  using Level = L;
  static constexpr bool scales_loss = std::is_same_v<L, O1> || std::is_same_v<L, O2>;
  static constexpr bool casts_model = std::is_same_v<L, O2> || std::is_same_v<L, O3>;

  static constexpr std::string_view name = std::is_same_v<L, O0>   ? "apex-o0"
                                           : std::is_same_v<L, O1> ? "apex-o1"
                                           : std::is_same_v<L, O2> ? "apex-o2"
                                                                   : "apex-o3";
  /// The scaler is local: gradients are reduced before they are looked at. Passes within a window are looked at on each
  /// rank, and agreed on at the step (apex_literal: after each micro-batch).
  static constexpr PrecisionTraits traits{.wraps_optimizers = true,
                                          .wraps_full_parameters = true,
                                          .scaler = scales_loss ? Scaler::local : Scaler::none,
                                          .compute = std::is_same_v<L, O0> ? Format::fp32 : Format::fp16,
                                          .storage = casts_model ? Format::fp16 : Format::fp32,
                                          .keeps_masters = std::is_same_v<L, O2>};

  using Options = std::conditional_t<scales_loss, ApexOptions, NoOptions>;
  Options options{};

  Apex() = default;
  constexpr explicit Apex(Options chosen) : options(chosen) {}
};

}  // namespace dovetail
