// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <dovetail/core/policy_base.hpp>
#include <dovetail/core/traits.hpp>
#include <string_view>
#include <type_traits>

namespace dovetail {

/// What a policy calls itself at run time: a constant, not empty.
template <class T>
concept Named = requires {
  requires std::bool_constant<!std::string_view(T::name).empty()>::value;
};

namespace detail {

template <unsigned>
struct Constant;

}  // namespace detail

/// Are the policy's traits a constant of this type? (`&T::traits` is one for a static member only. Whether it is a
/// constant is asked through a template argument: clang 14 takes an initializer that it has refused for one elsewhere.)
template <class T, class Traits>
concept HasTraits = std::same_as<decltype(&T::traits), const Traits*> && requires {
  typename detail::Constant<T::traits.order.count>;
};

/// The hooks of policies, by name.
enum class PolicyHook {
  none,  // no hook at all
  environment,
  build_model,
  convert_model,
  place_model,
  wrap_model,
  make_optimizers,
  rebuild_optimizers,
  wrap_optimizers,
  bind_schedulers,
  restore,
  attach_gradients,
  before_forward,
  forward_guard,
  finish_forward,
  before_backward,
  after_backward,
  reduce,
  before_step,
  after_step,
  teardown,
  traffic
};

namespace detail {

template <class T>
consteval PolicyHook find_uncallable_hook() {
  if (!requires(T& t, RunContext& run) { t.environment(run); }) return PolicyHook::environment;
  if (!requires(T& t, RunContext& run) { t.build_model(run); }) return PolicyHook::build_model;
  if (!requires(T& t, RunContext& run) { t.place_model(run); }) return PolicyHook::place_model;
  if (!requires(T& t, RunContext& run) { t.wrap_model(run); }) return PolicyHook::wrap_model;
  if (!requires(T& t, RunContext& run) { t.make_optimizers(run); }) return PolicyHook::make_optimizers;
  if (!requires(T& t, RunContext& run) { t.rebuild_optimizers(run); }) return PolicyHook::rebuild_optimizers;
  if (!requires(T& t, RunContext& run) { t.bind_schedulers(run); }) return PolicyHook::bind_schedulers;
  if (!requires(T& t, RunContext& run) { t.restore(run); }) return PolicyHook::restore;
  if (!requires(T& t, RunContext& run) { t.before_forward(run); }) return PolicyHook::before_forward;
  if (!requires(T& t, RunContext& run) { t.before_backward(run); }) return PolicyHook::before_backward;
  if (!requires(T& t, RunContext& run) { t.after_backward(run); }) return PolicyHook::after_backward;
  if (!requires(T& t, RunContext& run) { t.reduce(run); }) return PolicyHook::reduce;
  if (!requires(T& t, RunContext& run) { t.before_step(run); }) return PolicyHook::before_step;
  if (!requires(T& t, RunContext& run) { t.after_step(run); }) return PolicyHook::after_step;
  if (!requires(T& t, RunContext& run) { t.teardown(run); }) return PolicyHook::teardown;
  return PolicyHook::none;
}

/// Does `traffic` give a StepTraffic, or is it the base's?
template <class T>
concept TrafficIsTold = requires(T& t, const StepShape& step) {
  requires std::is_same_v<decltype(t.traffic(step)), StepTraffic>;
}
|| requires {
  requires std::is_same_v<decltype(&T::traffic), void (StrategyBase::*)(const StepShape&) const>;
};

template <class T>
consteval PolicyHook find_uncallable_hook_of_precision() {
  if (!requires(T& t, RunContext& run) { t.convert_model(run); }) return PolicyHook::convert_model;
  if (!requires(T& t, RunContext& run) { t.wrap_optimizers(run); }) return PolicyHook::wrap_optimizers;
  if (!requires(T& t, RunContext& run) { requires std::is_object_v<decltype(t.forward_guard(run))>; })
    return PolicyHook::forward_guard;
  return find_uncallable_hook<T>();
}

template <class T>
consteval PolicyHook find_uncallable_hook_of_strategy() {
  if (!requires(T& t, RunContext& run) { t.attach_gradients(run); }) return PolicyHook::attach_gradients;
  if (!requires(T& t, RunContext& run) { t.finish_forward(run); }) return PolicyHook::finish_forward;
  if (!TrafficIsTold<T>) return PolicyHook::traffic;
  return find_uncallable_hook<T>();
}

}  // namespace detail

/// The first hook that cannot be called as the loop calls it; a hook of the right name with other arguments hides the
/// empty one of the base.
template <class T>
inline constexpr PolicyHook uncallable_strategy_hook = PolicyHook::none;
template <std::derived_from<StrategyBase> T>
inline constexpr PolicyHook uncallable_strategy_hook<T> = detail::find_uncallable_hook_of_strategy<T>();
template <class T>
inline constexpr PolicyHook uncallable_precision_hook = PolicyHook::none;
template <std::derived_from<PrecisionBase> T>
inline constexpr PolicyHook uncallable_precision_hook<T> = detail::find_uncallable_hook_of_precision<T>();

/// A policy that is a template says by `static constexpr bool arguments_fit` whether it takes its arguments.
template <class T>
concept ArgumentsFit = !requires {
  T::arguments_fit;
}
|| requires {
  requires T::arguments_fit;
};

/// How work is spread over ranks: derives from StrategyBase, has `name` and `traits`, and can be copied into a run.
template <class T>
concept Strategy = std::derived_from<T, StrategyBase> && std::copy_constructible<T> && Named<T> && ArgumentsFit<T> &&
    HasTraits<T, StrategyTraits> && uncallable_strategy_hook<T>
== PolicyHook::none;

/// In which number formats the work is done: derives from PrecisionBase, has `name` and `traits`, and can be copied.
template <class T>
concept Precision = std::derived_from<T, PrecisionBase> && std::copy_constructible<T> && Named<T> && ArgumentsFit<T> &&
    HasTraits<T, PrecisionTraits> && uncallable_precision_hook<T>
== PolicyHook::none;

/// A number format or an optimization level: an argument of a Precision, no Precision itself. Written in its place it
/// gets an error of its own.
template <class T>
concept NumberFormat = std::is_arithmetic_v<T> || requires {
  requires std::same_as<decltype(T::format), const Format>;
};
template <class T>
concept OptimizationLevel = requires {
  T::optimization_level;
};

}  // namespace dovetail
