// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/almost_hooks.hpp>
#include <dovetail/core/place_rules.hpp>

/// Rules about what a policy lacks (E012), as in place_rules.hpp, and about its almost hooks (E022).

namespace dovetail {

/// What the compiler prints beside the message; each is named for what ought to hold.
template <class Policy>
inline constexpr bool has_a_name = Named<Policy>;
template <class Policy, class Traits>
inline constexpr bool has_traits = HasTraits<Policy, Traits>;
template <class Policy, PolicyHook hook>
inline constexpr bool can_be_called = hook == PolicyHook::none;
template <class Policy>
inline constexpr bool can_be_copied = std::copy_constructible<Policy>;
template <class Policy>
inline constexpr bool takes_its_arguments = ArgumentsFit<Policy>;
template <class Policy>
inline constexpr bool forward_guard_can_be_called = uncallable_precision_hook<Policy> != PolicyHook::forward_guard;
template <class Policy>
inline constexpr bool traffic_can_be_asked_for = uncallable_strategy_hook<Policy> != PolicyHook::traffic;

namespace detail {

/// The hook at fault is a parameter of its own, so that the compiler prints its name.
template <class Policy, PolicyHook hook>
struct StrategyHookReport {
  static_assert(can_be_called<Policy, hook>,
                "dovetail-E012: a hook of the Strategy cannot be called as the loop does. Use the form: void "
                "after_step(StrategyContext&).");
};

template <class Policy, PolicyHook hook>
struct PrecisionHookReport {
  static_assert(can_be_called<Policy, hook>,
                "dovetail-E012: a hook of the Precision cannot be called as the loop does. Use the form: void "
                "after_step(PrecisionContext&).");
};

}  // namespace detail

namespace rules {

struct StrategyArgument : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: the Strategy does not take this template argument. Use Sharded<1> or Sharded<2>; "
      "FSDP cuts parameters too.";
  template <class S, class P>
  static constexpr bool violated = !takes_its_arguments<S>;
  template <class S, class P>
  struct Report {
    static_assert(takes_its_arguments<S>,
                  "dovetail-E012: the Strategy does not take this template argument. Use Sharded<1> or Sharded<2>; "
                  "FSDP cuts parameters too.");
  };
};

struct PrecisionArgument : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: the Precision does not take this template argument. Use Apex<O0> to Apex<O3>, "
      "MasterWeights<BF16> or MasterWeights<FP16>.";
  template <class S, class P>
  static constexpr bool violated = !takes_its_arguments<P>;
  template <class S, class P>
  struct Report {
    static_assert(takes_its_arguments<P>,
                  "dovetail-E012: the Precision does not take this template argument. Use Apex<O0> to Apex<O3>, "
                  "MasterWeights<BF16> or MasterWeights<FP16>.");
  };
};

struct StrategyUnnamed : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: the Strategy has no name. Use: static constexpr std::string_view name = "
      "\"my-strategy\";";
  template <class S, class P>
  static constexpr bool violated = !has_a_name<S>;
  template <class S, class P>
  struct Report {
    static_assert(has_a_name<S>,
                  "dovetail-E012: the Strategy has no name. Use: static constexpr std::string_view name = "
                  "\"my-strategy\";");
  };
};

struct PrecisionUnnamed : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: the Precision has no name. Use: static constexpr std::string_view name = "
      "\"my-precision\";";
  template <class S, class P>
  static constexpr bool violated = !has_a_name<P>;
  template <class S, class P>
  struct Report {
    static_assert(has_a_name<P>,
                  "dovetail-E012: the Precision has no name. Use: static constexpr std::string_view name = "
                  "\"my-precision\";");
  };
};

struct StrategyTraitsMissing : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: the Strategy has no constant `traits`. Use: static constexpr StrategyTraits "
      "traits{};";
  template <class S, class P>
  static constexpr bool violated = !has_traits<S, StrategyTraits>;
  template <class S, class P>
  struct Report {
    static_assert(has_traits<S, StrategyTraits>,
                  "dovetail-E012: the Strategy has no constant `traits`. Use: static constexpr StrategyTraits "
                  "traits{};");
  };
};

struct PrecisionTraitsMissing : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: the Precision has no constant `traits`. Use: static constexpr PrecisionTraits "
      "traits{};";
  template <class S, class P>
  static constexpr bool violated = !has_traits<P, PrecisionTraits>;
  template <class S, class P>
  struct Report {
    static_assert(has_traits<P, PrecisionTraits>,
                  "dovetail-E012: the Precision has no constant `traits`. Use: static constexpr PrecisionTraits "
                  "traits{};");
  };
};

struct TrafficUncallable : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: traffic of the Strategy cannot be asked for. Use the form: StepTraffic traffic(const StepShape&) "
      "const.";
  template <class S, class P>
  static constexpr bool violated = !traffic_can_be_asked_for<S>;
  template <class S, class P>
  struct Report {
    static_assert(traffic_can_be_asked_for<S>,
                  "dovetail-E012: traffic of the Strategy cannot be asked for. Use the form: StepTraffic traffic(const "
                  "StepShape&) const.");
  };
};

struct StrategyHookUncallable : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: a hook of the Strategy cannot be called as the loop does. Use the form: void "
      "after_step(StrategyContext&).";
  template <class S, class P>
  static constexpr bool violated = uncallable_strategy_hook<S> != PolicyHook::none;
  template <class S, class P>
  using Report = detail::StrategyHookReport<S, uncallable_strategy_hook<S>>;
};

struct ForwardGuardUncallable : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: forward_guard of the Precision cannot be called as the loop does. Use the form: Guard "
      "forward_guard(PrecisionContext&), Guard being a class whose destructor ends what it guards.";
  template <class S, class P>
  static constexpr bool violated = !forward_guard_can_be_called<P>;
  template <class S, class P>
  struct Report {
    static_assert(
        forward_guard_can_be_called<P>,
        "dovetail-E012: forward_guard of the Precision cannot be called as the loop does. Use the form: Guard "
        "forward_guard(PrecisionContext&), Guard being a class whose destructor ends what it guards.");
  };
};

struct PrecisionHookUncallable : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: a hook of the Precision cannot be called as the loop does. Use the form: void "
      "after_step(PrecisionContext&).";
  template <class S, class P>
  static constexpr bool violated = uncallable_precision_hook<P> != PolicyHook::none;
  template <class S, class P>
  using Report = detail::PrecisionHookReport<P, uncallable_precision_hook<P>>;
};

struct StrategyNotCopyable : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: the Strategy cannot be copied, but every run takes a copy. Use shared_ptr for "
      "what it shares.";
  template <class S, class P>
  static constexpr bool violated = !can_be_copied<S>;
  template <class S, class P>
  struct Report {
    static_assert(can_be_copied<S>,
                  "dovetail-E012: the Strategy cannot be copied, but every run takes a copy. Use shared_ptr for "
                  "what it shares.");
  };
};

struct PrecisionNotCopyable : E012 {
  static constexpr std::string_view text =
      "dovetail-E012: the Precision cannot be copied, but every run takes a copy. Use shared_ptr for "
      "what it shares.";
  template <class S, class P>
  static constexpr bool violated = !can_be_copied<P>;
  template <class S, class P>
  struct Report {
    static_assert(can_be_copied<P>,
                  "dovetail-E012: the Precision cannot be copied, but every run takes a copy. Use shared_ptr for "
                  "what it shares.");
  };
};

}  // namespace rules

namespace detail {

using PolicyRules = RuleList<rules::Swapped, rules::FormatAsPrecision, rules::LevelAsPrecision, rules::NotAStrategy,
                             rules::NotAPrecision, rules::StrategyArgument, rules::PrecisionArgument,
                             rules::StrategyUnnamed, rules::PrecisionUnnamed, rules::StrategyTraitsMissing,
                             rules::PrecisionTraitsMissing, rules::TrafficUncallable, rules::StrategyHookUncallable,
                             rules::ForwardGuardUncallable, rules::PrecisionHookUncallable, rules::StrategyNotCopyable,
                             rules::PrecisionNotCopyable, rules::StrategyAlmostHook, rules::PrecisionAlmostHook>;

}  // namespace detail

}  // namespace dovetail
