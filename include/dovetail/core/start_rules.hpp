// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/rule.hpp>
#include <dovetail/core/traits.hpp>

/// Rules about options, which are run-time values: fit checks them before anything starts, with the texts written here.

namespace dovetail {

/// How gradients are clipped.
enum class ClipKind { none, norm, value };

/// What a run was asked for, as far as rules speak of it.
struct StartRequest {
  ClipKind clip = ClipKind::none;
  bool resume = false;
  bool optimizer_unscales_itself = false;  ///< one of the optimizers says so in its optimizer_traits
};

namespace rules {

struct E007 {
  static constexpr RuleRow row{"dovetail-E007", When::start, "a kind of clipping that the strategy cannot do"};
};

struct NoClipping : E007 {
  static constexpr std::string_view text = "dovetail-E007: the Strategy cannot clip gradients. Use no gradient_clip.";
  static constexpr bool violated(const StrategyTraits& s, const PrecisionTraits&, const StartRequest& request) {
    return request.clip != ClipKind::none && !s.clips.norm && !s.clips.value;
  }
};

struct NoNormClipping : E007 {
  static constexpr std::string_view text =
      "dovetail-E007: the Strategy cannot clip gradients by norm. Use clip_value, or no gradient_clip.";
  static constexpr bool violated(const StrategyTraits& s, const PrecisionTraits&, const StartRequest& request) {
    return request.clip == ClipKind::norm && !s.clips.norm;
  }
};

struct NoValueClipping : E007 {
  static constexpr std::string_view text =
      "dovetail-E007: the Strategy cannot clip gradients by value. Use clip_norm, or no gradient_clip.";
  static constexpr bool violated(const StrategyTraits& s, const PrecisionTraits&, const StartRequest& request) {
    return request.clip == ClipKind::value && !s.clips.value;
  }
};

struct E009 {
  static constexpr RuleRow row{"dovetail-E009", When::start, "resume asked for, but a policy is not resumable"};
};

struct StrategyNotResumable : E009 {
  static constexpr std::string_view text =
      "dovetail-E009: the run cannot be resumed, because its Strategy is not resumable. Use a fresh run, or a Strategy "
      "whose trait `resumable` holds.";
  static constexpr bool violated(const StrategyTraits& s, const PrecisionTraits&, const StartRequest& request) {
    return request.resume && !s.resumable;
  }
};

struct PrecisionNotResumable : E009 {
  static constexpr std::string_view text =
      "dovetail-E009: the run cannot be resumed, because its Precision is not resumable. Use a fresh run, or a "
      "Precision "
      "whose trait `resumable` holds.";
  static constexpr bool violated(const StrategyTraits&, const PrecisionTraits& p, const StartRequest& request) {
    return request.resume && !p.resumable;
  }
};

struct E010 {
  static constexpr RuleRow row{"dovetail-E010", When::start,
                               "an optimizer that unscales inside itself, with clipping under a scaler"};
  static constexpr std::string_view text =
      "dovetail-E010: the optimizer unscales gradients inside its step, so what is clipped before it is still scaled. "
      "Use "
      "an optimizer of Dovetail, a precision without a scaler, or no gradient_clip.";
  static constexpr bool violated(const StrategyTraits&, const PrecisionTraits& p, const StartRequest& request) {
    return request.optimizer_unscales_itself && request.clip != ClipKind::none && p.scaler != Scaler::none;
  }
};

}  // namespace rules

namespace detail {

using StartRules = RuleList<rules::NoClipping, rules::NoNormClipping, rules::NoValueClipping,
                            rules::StrategyNotResumable, rules::PrecisionNotResumable, rules::E010>;

}  // namespace detail

/// The first rule that these options violate. The text goes into an Error with ExitCode::arguments.
constexpr Verdict start_verdict(const StrategyTraits& strategy, const PrecisionTraits& precision,
                                const StartRequest& request) {
  return detail::first_violated(detail::StartRules{}, strategy, precision, request);
}

}  // namespace dovetail
