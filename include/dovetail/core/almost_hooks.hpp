// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/near_misses_of_policies.hpp>
#include <dovetail/core/rule.hpp>
#include <string_view>
#include <type_traits>

/// Members of a policy that would never be called (E022): almost hooks, and hooks of the other policy.

namespace dovetail {

namespace detail {

template <class T, class Base>
consteval bool present_in(bool well_formed) {
  return std::is_base_of_v<Base, T> && present<T>(well_formed);
}

/// A hook of a Precision in a Strategy, or the reverse. With `reports` the first is an error.
template <class T, bool reports>
constexpr bool has_foreign_hook() {
  if constexpr (present_in<T, StrategyBase>(requires { &PolicyProbe<T>::forward_guard; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: forward_guard is a hook of a Precision, not of a Strategy. Use a Precision.");
  } else if constexpr (present_in<T, StrategyBase>(requires { &PolicyProbe<T>::convert_model; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: convert_model is a hook of a Precision, not of a Strategy. Use a Precision.");
  } else if constexpr (present_in<T, StrategyBase>(requires { &PolicyProbe<T>::wrap_optimizers; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: wrap_optimizers is a hook of a Precision, not of a Strategy. Use a Precision.");
  } else if constexpr (present_in<T, PrecisionBase>(requires { &PolicyProbe<T>::attach_gradients; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: attach_gradients is a hook of a Strategy, not of a Precision. Use a Strategy.");
  } else if constexpr (present_in<T, PrecisionBase>(requires { &PolicyProbe<T>::finish_forward; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: finish_forward is a hook of a Strategy, not of a Precision. Use a Strategy.");
  } else if constexpr (present_in<T, PrecisionBase>(requires { &PolicyProbe<T>::traffic; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: traffic is a hook of a Strategy, not of a Precision. Use a Strategy.");
  } else {
    return false;
  }
  return true;
}

/// The name is found, and said, in the constructor.
template <class Policy>
struct NearMissOfPolicy {
  NearMissOfPolicy() {
    if constexpr (misses_policy_hook<Policy, false>())
      misses_policy_hook<Policy, true>();
    else
      has_foreign_hook<Policy, true>();
  }
};

}  // namespace detail

template <class Policy>
inline constexpr bool has_almost_hooks =
    detail::misses_policy_hook<Policy, false>() || detail::has_foreign_hook<Policy, false>();

namespace rules {

/// The compiler says which name, and what is meant; for run time there is no list of members to search.
struct AlmostHook {
  static constexpr RuleRow row{
      "dovetail-E022", When::type,
      "a member of a policy that is almost a hook, or one of the other policy, and would never be called"};
};

struct StrategyAlmostHook : AlmostHook {
  static constexpr std::string_view text =
      "dovetail-E022: the Strategy has a member that is almost a hook and would never be called. Use the hook's name; "
      "a trainer of this Strategy says which when it is compiled.";
  template <class S, class P>
  static constexpr bool violated = has_almost_hooks<S>;
  template <class S, class P>
  using Report = detail::NearMissOfPolicy<S>;
};

struct PrecisionAlmostHook : AlmostHook {
  static constexpr std::string_view text =
      "dovetail-E022: the Precision has a member that is almost a hook and would never be called. Use the hook's name; "
      "a trainer of this Precision says which when it is compiled.";
  template <class S, class P>
  static constexpr bool violated = has_almost_hooks<P>;
  template <class S, class P>
  using Report = detail::NearMissOfPolicy<P>;
};

}  // namespace rules

}  // namespace dovetail
