// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/policy_concepts.hpp>
#include <dovetail/core/rule.hpp>

/// Rules about what stands where a policy belongs (E012). They are judged on types, before any trait is read. Each text
/// is written twice, because a static_assert takes nothing but a literal; a test compares the two.

namespace dovetail {

/// The conditions below are what the compiler prints beside the message; each is named for what ought to hold.
template <class S, class P>
inline constexpr bool strategy_comes_first =
    !(std::derived_from<S, PrecisionBase> && std::derived_from<P, StrategyBase>);
template <class Policy, class Base>
inline constexpr bool derives_from = std::derived_from<Policy, Base>;
namespace rules {

struct E012 {
  static constexpr RuleRow row{"dovetail-E012", When::type,
                               "not a Strategy, not a Precision, the two swapped, a number format or level where a "
                               "precision belongs, a policy whose name, traits or hooks do not fit"};
};

struct Swapped : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: Strategy and Precision are swapped. Use Trainer<Strategy, Precision>, the "
      "Strategy first.";
  template <class S, class P>
  static constexpr bool violated = !strategy_comes_first<S, P>;
  template <class S, class P>
  struct Report {
    static_assert(strategy_comes_first<S, P>,
                  "dovetail-E012: Strategy and Precision are swapped. Use Trainer<Strategy, Precision>, the "
                  "Strategy first.");
  };
};

struct FormatAsPrecision : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: a number format is not a Precision. Use FP32, FP64, BF16Mixed, FP16Mixed, "
      "BF16True, FP16True or MasterWeights<BF16>.";
  template <class S, class P>
  static constexpr bool violated = NumberFormat<P>;
  template <class S, class P>
  struct Report {
    static_assert(!NumberFormat<P>,
                  "dovetail-E012: a number format is not a Precision. Use FP32, FP64, BF16Mixed, FP16Mixed, "
                  "BF16True, FP16True or MasterWeights<BF16>.");
  };
};

struct LevelAsPrecision : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: an optimization level is not a Precision. Use Apex<O2>, or another level of it.";
  template <class S, class P>
  static constexpr bool violated = OptimizationLevel<P>;
  template <class S, class P>
  struct Report {
    static_assert(!OptimizationLevel<P>,
                  "dovetail-E012: an optimization level is not a Precision. Use Apex<O2>, or another level of it.");
  };
};

struct NotAStrategy : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: the first argument is not a Strategy. Use a type that derives from StrategyBase.";
  template <class S, class P>
  static constexpr bool violated = !derives_from<S, StrategyBase>;
  template <class S, class P>
  struct Report {
    static_assert(derives_from<S, StrategyBase>,
                  "dovetail-E012: the first argument is not a Strategy. Use a type that derives from StrategyBase.");
  };
};

struct NotAPrecision : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: the second argument is not a Precision. Use a type that derives from "
      "PrecisionBase.";
  template <class S, class P>
  static constexpr bool violated = !derives_from<P, PrecisionBase>;
  template <class S, class P>
  struct Report {
    static_assert(derives_from<P, PrecisionBase>,
                  "dovetail-E012: the second argument is not a Precision. Use a type that derives from "
                  "PrecisionBase.");
  };
};

}  // namespace rules

}  // namespace dovetail
