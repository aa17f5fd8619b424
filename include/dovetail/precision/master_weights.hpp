// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/policy_base.hpp>
#include <dovetail/core/traits.hpp>
#include <dovetail/precision/formats.hpp>
#include <dovetail/precision/scaler_options.hpp>
#include <string_view>
#include <type_traits>

namespace dovetail {

/// A model in low precision with fp32 master weights of what this rank owns, and gradients accumulated in fp32. What it
/// wraps is the local shard, so it needs the optimizers to exist and nothing more, and fits every Strategy.
template <class F>
struct MasterWeights final : PrecisionBase {
  static constexpr bool arguments_fit = std::is_same_v<F, BF16> || std::is_same_v<F, FP16>;

  static constexpr bool scales_loss = std::is_same_v<F, FP16>;
  static constexpr std::string_view name = scales_loss ? "master-fp16" : "master-bf16";
  static constexpr PrecisionTraits traits{.wraps_optimizers = true,
                                          .scaler = scales_loss ? Scaler::collective : Scaler::none,
                                          .compute = scales_loss ? Format::fp16 : Format::bf16,
                                          .storage = scales_loss ? Format::fp16 : Format::bf16,
                                          .keeps_masters = true};

  using Options = std::conditional_t<scales_loss, ScalerOptions, NoOptions>;
  Options options{};

  MasterWeights() = default;
  constexpr explicit MasterWeights(Options chosen) : options(chosen) {}
};

}  // namespace dovetail
