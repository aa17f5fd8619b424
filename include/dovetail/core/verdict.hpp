// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/fit_rules.hpp>
#include <dovetail/core/pair_rules.hpp>
#include <dovetail/core/policy_rules.hpp>

namespace dovetail {

namespace detail {

template <class S, class P>
consteval Verdict judge_pair() {
  constexpr Verdict on_types = first_violated_by<S, P>(PolicyRules{});
  if constexpr (!on_types)
    return on_types;
  else
    return first_violated(PairRules{}, S::traits, P::traits);
}

}  // namespace detail

/// The verdict on a pair of policies: the first rule it violates, in the order E012, E011, E001, E002, E003, E004.
/// Never an error by itself, for any two types.
template <class S, class P>
inline constexpr Verdict verdict = detail::judge_pair<S, P>();

/// Can the two policies train together?
template <class S, class P>
inline constexpr bool compatible = static_cast<bool>(verdict<S, P>);

/// The verdict on a compatible pair with the optimizers that a Task makes, in the order E005, E006, E008.
template <class S, class P, class... Optimizers>
inline constexpr Verdict fit_verdict = detail::first_violated_by<S, P, Optimizers...>(detail::FitRules{});

namespace detail {

template <class S, class P, class... Optimizers>
consteval bool judge_fit() {
  if constexpr (compatible<S, P>)
    return static_cast<bool>(fit_verdict<S, P, Optimizers...>);
  else
    return false;
}

}  // namespace detail

/// Can the pair train with these types of optimizers?
template <class S, class P, class... Optimizers>
inline constexpr bool accepts = detail::judge_fit<S, P, Optimizers...>();

}  // namespace dovetail
