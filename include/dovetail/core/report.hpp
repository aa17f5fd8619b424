// SPDX-License-Identifier: Apache-2.0
#pragma once

// The rules come first and directly: the compiler prints the chain of includes above each report.
#include <dovetail/core/fit_rules.hpp>
#include <dovetail/core/pair_rules.hpp>
#include <dovetail/core/place_rules.hpp>
#include <dovetail/core/policy_rules.hpp>
#include <dovetail/core/verdict.hpp>
#include <type_traits>

/// How a refusal is worded at compile time. A verdict decides; a report, which is instantiated only where the verdict
/// is "refused", prints the one rule that was violated. Whoever holds a pair of policies does this:
///
///     template <class S, class P>
///     class Trainer {
///      public:
///       Trainer(TrainerOptions options = {}, S strategy = {}, P precision = {}) {
///         [[maybe_unused]] detail::PairReport<S, P> report;
///       }
///       void fit(...) { if constexpr (compatible<S, P>) ... }
///     };
///
/// The report sits in the constructor and nowhere else: the class itself stays valid, so neither compiler adds errors
/// about missing members, and a type that is only named costs nothing. Everything else is empty for a refused pair.

namespace dovetail::detail {

struct NoReport {};

template <class Rule, class S, class P>
consteval bool violates() {
  if constexpr (requires { Rule::template violated<S, P>; })
    return Rule::template violated<S, P>;
  else
    return Rule::violated(S::traits, P::traits);
}

/// The report of the first violated rule as a std::type_identity. The search is over before the report is instantiated,
/// so it leaves no trace in the compiler's output.
template <class S, class P>
consteval auto find_report(RuleList<>) {
  return std::type_identity<NoReport>{};
}
template <class S, class P, class Rule, class... Rest>
consteval auto find_report(RuleList<Rule, Rest...>) {
  if constexpr (violates<Rule, S, P>())
    return std::type_identity<typename Rule::template Report<S, P>>{};
  else
    return find_report<S, P>(RuleList<Rest...>{});
}

template <class S, class P>
consteval auto find_pair_report() {
  if constexpr (first_violated_by<S, P>(PolicyRules{}))
    return find_report<S, P>(PairRules{});
  else
    return find_report<S, P>(PolicyRules{});
}

/// An empty struct; for a refused pair, the one error.
template <class S, class P>
using PairReport = typename decltype(find_pair_report<S, P>())::type;

template <class S, class P, class... Optimizers>
consteval auto find_optimizer_report() {
  if constexpr (!compatible<S, P>)
    return std::type_identity<NoReport>{};  // the pair has its error already
  else if constexpr (rules::E005::violated<S, P, Optimizers...>)
    return std::type_identity<rules::E005::Report<S, P, Optimizers...>>{};
  else if constexpr (rules::E006::violated<S, P, Optimizers...>)
    return std::type_identity<rules::E006::Report<S, P, Optimizers...>>{};
  else if constexpr (rules::E008::violated<S, P, Optimizers...>)
    return std::type_identity<rules::E008::Report<S, P, Optimizers...>>{};
  else
    return std::type_identity<NoReport>{};
}

/// The same for the optimizers that configure_optimizers returned: fit instantiates it in the continuation that is
/// templated on their types, and does nothing more there unless `accepts<S, P, Optimizers...>`.
template <class S, class P, class... Optimizers>
using OptimizerReport = typename decltype(find_optimizer_report<S, P, Optimizers...>())::type;

}  // namespace dovetail::detail
