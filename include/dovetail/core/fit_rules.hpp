// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/rule.hpp>
#include <dovetail/core/traits.hpp>
#include <type_traits>

/// Rules that need to know the optimizers, so fit judges them, at compile time.

namespace dovetail {

namespace detail {

template <class Optimizer>
inline constexpr OptimizerTraits traits_of_optimizer = optimizer_traits<std::remove_cvref_t<Optimizer>>;

template <class... Optimizers>
inline constexpr bool any_requires_closure = (traits_of_optimizer<Optimizers>.requires_closure || ...);
template <class... Optimizers>
inline constexpr bool all_elementwise = (traits_of_optimizer<Optimizers>.elementwise && ...);
template <class... Optimizers>
inline constexpr bool any_unscales_itself = (traits_of_optimizer<Optimizers>.unscales_itself || ...);

}  // namespace detail

namespace rules {

struct E005 {
  static constexpr RuleRow row{"dovetail-E005", When::fit,
                               "the optimizer needs a closure, the precision or the strategy refuses closures"};
  static constexpr std::string_view text =
      "dovetail-E005: the optimizer needs a closure, but the Strategy or the Precision takes none. Use FP32 with "
      "SingleDevice or DDP, or an optimizer without a closure.";
  template <class S, class P, class... Optimizers>
  static constexpr bool closures_fit =
      !detail::any_requires_closure<Optimizers...> || (S::traits.accepts_closure && P::traits.accepts_closure);
  template <class S, class P, class... Optimizers>
  static constexpr bool violated = !closures_fit<S, P, Optimizers...>;
  template <class S, class P, class... Optimizers>
  struct Report {
    static_assert(
        closures_fit<S, P, Optimizers...>,
        "dovetail-E005: the optimizer needs a closure, but the Strategy or the Precision takes none. Use FP32 "
        "with SingleDevice or DDP, or an optimizer without a closure.");
  };
};

struct E006 {
  static constexpr RuleRow row{"dovetail-E006", When::fit,
                               "the optimizer is not element-wise and the strategy cuts tensors"};
  static constexpr std::string_view text =
      "dovetail-E006: the Strategy cuts tensors, but the optimizer is not element-wise: on a part it computes "
      "something "
      "else. Use Sharded, an element-wise optimizer such as AdamW, or specialise optimizer_traits.";
  template <class S, class P, class... Optimizers>
  static constexpr bool optimizers_take_parts = !S::traits.cuts_tensors || detail::all_elementwise<Optimizers...>;
  template <class S, class P, class... Optimizers>
  static constexpr bool violated = !optimizers_take_parts<S, P, Optimizers...>;
  template <class S, class P, class... Optimizers>
  struct Report {
    static_assert(optimizers_take_parts<S, P, Optimizers...>,
                  "dovetail-E006: the Strategy cuts tensors, but the optimizer is not element-wise: on a part it "
                  "computes something else. Use Sharded, an element-wise optimizer such as AdamW, or specialise "
                  "optimizer_traits.");
  };
};

struct E008 {
  static constexpr RuleRow row{"dovetail-E008", When::fit, "more optimizers than the strategy takes"};
  static constexpr std::string_view text =
      "dovetail-E008: more optimizers than the Strategy takes (trait `max_optimizers`). Use one optimizer with "
      "parameter "
      "groups.";
  template <class S, class P, class... Optimizers>
  static constexpr bool takes_that_many = sizeof...(Optimizers) <= S::traits.max_optimizers;
  template <class S, class P, class... Optimizers>
  static constexpr bool violated = !takes_that_many<S, P, Optimizers...>;
  template <class S, class P, class... Optimizers>
  struct Report {
    static_assert(takes_that_many<S, P, Optimizers...>,
                  "dovetail-E008: more optimizers than the Strategy takes (trait `max_optimizers`). Use one optimizer "
                  "with parameter groups.");
  };
};

}  // namespace rules

namespace detail {

using FitRules = RuleList<rules::E005, rules::E006, rules::E008>;

}  // namespace detail

}  // namespace dovetail
