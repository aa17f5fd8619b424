// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/near_misses.hpp>
#include <dovetail/core/policy_base.hpp>

/// Members of a policy that are almost hooks and would never be called (E022), as in near_misses.hpp: letters swapped
/// or dropped, singular and plural, other frameworks' words. A name is refused only where the hook meant is still the
/// base's empty one: beside a hook of the policy's own it may be a helper.

namespace dovetail::detail {

struct PolicyNames {
  int enviroment, environnement, setup_environment, on_environment, build_modle, build_module, bulid_model,
      create_model, make_model, place_modle, place_module, move_model, model_to_device, wrap_modle, wrap_module,
      wrap_models, warp_model, make_optimizer, make_optimisers, create_optimizers, configure_optimizers,
      setup_optimizers, rebuild_optimizer, rebuild_optimisers, bind_scheduler, bind_schedules, befor_forward,
      before_foward, on_before_forward, pre_forward, befor_backward, before_backwards, on_before_backward, pre_backward,
      after_backwards, on_after_backward, post_backward, befor_step, on_before_step, pre_step, before_optimizer_step,
      on_before_optimizer_step, on_after_step, post_step, after_optimizer_step, after_steps, tear_down, on_teardown,
      tear_dwon, convert_modle, convert_module, convert_models, cast_model, wrap_optimizer, wrap_optimisers,
      warp_optimizers, forward_gaurd, foward_guard, forward_guards, forward_context, attach_gradient, attach_grads,
      finish_foward, after_forward, post_forward;

  // Hooks of one policy, looked for in the other (almost_hooks.hpp).
  int forward_guard, convert_model, wrap_optimizers, attach_gradients, finish_forward, traffic;
};

template <class T>
struct PolicyProbeOf : T, PolicyNames {};

/// As Probe, with the names above.
template <class T>
using PolicyProbe = std::conditional_t<std::is_class_v<T> && !std::is_final_v<T>, PolicyProbeOf<T>, T>;

/// For `&T::hook`: is it the empty one of a base?
template <class Returned, class Class>
consteval bool empty_hook(Returned (Class::*)(RunContext&)) {
  return std::is_same_v<Class, StrategyBase> || std::is_same_v<Class, PrecisionBase>;
}

/// As misses_moment, for the hooks of a Strategy or a Precision.
template <class T, bool reports>
constexpr bool misses_policy_hook() {
  if constexpr (present<T>(requires { &PolicyProbe<T>::enviroment; }) &&
                requires { requires empty_hook(&T::environment); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: enviroment is not a hook. Use environment.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::environnement; }) &&
                       requires { requires empty_hook(&T::environment); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: environnement is not a hook. Use environment.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::setup_environment; }) &&
                       requires { requires empty_hook(&T::environment); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: setup_environment is not a hook. Use environment.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::on_environment; }) &&
                       requires { requires empty_hook(&T::environment); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_environment is not a hook. Use environment.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::build_modle; }) &&
                       requires { requires empty_hook(&T::build_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: build_modle is not a hook. Use build_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::build_module; }) &&
                       requires { requires empty_hook(&T::build_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: build_module is not a hook. Use build_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::bulid_model; }) &&
                       requires { requires empty_hook(&T::build_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: bulid_model is not a hook. Use build_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::create_model; }) &&
                       requires { requires empty_hook(&T::build_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: create_model is not a hook. Use build_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::make_model; }) &&
                       requires { requires empty_hook(&T::build_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: make_model is not a hook. Use build_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::place_modle; }) &&
                       requires { requires empty_hook(&T::place_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: place_modle is not a hook. Use place_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::place_module; }) &&
                       requires { requires empty_hook(&T::place_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: place_module is not a hook. Use place_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::move_model; }) &&
                       requires { requires empty_hook(&T::place_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: move_model is not a hook. Use place_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::model_to_device; }) &&
                       requires { requires empty_hook(&T::place_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: model_to_device is not a hook. Use place_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::wrap_modle; }) &&
                       requires { requires empty_hook(&T::wrap_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: wrap_modle is not a hook. Use wrap_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::wrap_module; }) &&
                       requires { requires empty_hook(&T::wrap_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: wrap_module is not a hook. Use wrap_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::wrap_models; }) &&
                       requires { requires empty_hook(&T::wrap_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: wrap_models is not a hook. Use wrap_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::warp_model; }) &&
                       requires { requires empty_hook(&T::wrap_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: warp_model is not a hook. Use wrap_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::make_optimizer; }) &&
                       requires { requires empty_hook(&T::make_optimizers); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: make_optimizer is not a hook. Use make_optimizers.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::make_optimisers; }) &&
                       requires { requires empty_hook(&T::make_optimizers); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: make_optimisers is not a hook. Use make_optimizers.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::create_optimizers; }) &&
                       requires { requires empty_hook(&T::make_optimizers); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: create_optimizers is not a hook. Use make_optimizers.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::configure_optimizers; }) &&
                       requires { requires empty_hook(&T::make_optimizers); }) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: configure_optimizers is not a hook. Use make_optimizers.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::setup_optimizers; }) &&
                       requires { requires empty_hook(&T::make_optimizers); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: setup_optimizers is not a hook. Use make_optimizers.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::rebuild_optimizer; }) &&
                       requires { requires empty_hook(&T::rebuild_optimizers); }) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: rebuild_optimizer is not a hook. Use rebuild_optimizers.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::rebuild_optimisers; }) &&
                       requires { requires empty_hook(&T::rebuild_optimizers); }) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: rebuild_optimisers is not a hook. Use rebuild_optimizers.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::bind_scheduler; }) &&
                       requires { requires empty_hook(&T::bind_schedulers); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: bind_scheduler is not a hook. Use bind_schedulers.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::bind_schedules; }) &&
                       requires { requires empty_hook(&T::bind_schedulers); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: bind_schedules is not a hook. Use bind_schedulers.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::befor_forward; }) &&
                       requires { requires empty_hook(&T::before_forward); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: befor_forward is not a hook. Use before_forward.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::before_foward; }) &&
                       requires { requires empty_hook(&T::before_forward); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: before_foward is not a hook. Use before_forward.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::on_before_forward; }) &&
                       requires { requires empty_hook(&T::before_forward); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_before_forward is not a hook. Use before_forward.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::pre_forward; }) &&
                       requires { requires empty_hook(&T::before_forward); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: pre_forward is not a hook. Use before_forward.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::befor_backward; }) &&
                       requires { requires empty_hook(&T::before_backward); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: befor_backward is not a hook. Use before_backward.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::before_backwards; }) &&
                       requires { requires empty_hook(&T::before_backward); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: before_backwards is not a hook. Use before_backward.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::on_before_backward; }) &&
                       requires { requires empty_hook(&T::before_backward); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_before_backward is not a hook. Use before_backward.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::pre_backward; }) &&
                       requires { requires empty_hook(&T::before_backward); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: pre_backward is not a hook. Use before_backward.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::after_backwards; }) &&
                       requires { requires empty_hook(&T::after_backward); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: after_backwards is not a hook. Use after_backward.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::on_after_backward; }) &&
                       requires { requires empty_hook(&T::after_backward); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_after_backward is not a hook. Use after_backward.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::post_backward; }) &&
                       requires { requires empty_hook(&T::after_backward); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: post_backward is not a hook. Use after_backward.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::befor_step; }) &&
                       requires { requires empty_hook(&T::before_step); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: befor_step is not a hook. Use before_step.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::on_before_step; }) &&
                       requires { requires empty_hook(&T::before_step); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_before_step is not a hook. Use before_step.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::pre_step; }) &&
                       requires { requires empty_hook(&T::before_step); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: pre_step is not a hook. Use before_step.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::before_optimizer_step; }) &&
                       requires { requires empty_hook(&T::before_step); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: before_optimizer_step is not a hook. Use before_step.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::on_before_optimizer_step; }) &&
                       requires { requires empty_hook(&T::before_step); }) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_before_optimizer_step is not a hook. Use before_step.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::on_after_step; }) &&
                       requires { requires empty_hook(&T::after_step); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_after_step is not a hook. Use after_step.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::post_step; }) &&
                       requires { requires empty_hook(&T::after_step); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: post_step is not a hook. Use after_step.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::after_optimizer_step; }) &&
                       requires { requires empty_hook(&T::after_step); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: after_optimizer_step is not a hook. Use after_step.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::after_steps; }) &&
                       requires { requires empty_hook(&T::after_step); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: after_steps is not a hook. Use after_step.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::tear_down; }) &&
                       requires { requires empty_hook(&T::teardown); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: tear_down is not a hook. Use teardown.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::on_teardown; }) &&
                       requires { requires empty_hook(&T::teardown); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_teardown is not a hook. Use teardown.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::tear_dwon; }) &&
                       requires { requires empty_hook(&T::teardown); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: tear_dwon is not a hook. Use teardown.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::convert_modle; }) &&
                       requires { requires empty_hook(&T::convert_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: convert_modle is not a hook. Use convert_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::convert_module; }) &&
                       requires { requires empty_hook(&T::convert_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: convert_module is not a hook. Use convert_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::convert_models; }) &&
                       requires { requires empty_hook(&T::convert_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: convert_models is not a hook. Use convert_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::cast_model; }) &&
                       requires { requires empty_hook(&T::convert_model); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: cast_model is not a hook. Use convert_model.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::wrap_optimizer; }) &&
                       requires { requires empty_hook(&T::wrap_optimizers); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: wrap_optimizer is not a hook. Use wrap_optimizers.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::wrap_optimisers; }) &&
                       requires { requires empty_hook(&T::wrap_optimizers); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: wrap_optimisers is not a hook. Use wrap_optimizers.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::warp_optimizers; }) &&
                       requires { requires empty_hook(&T::wrap_optimizers); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: warp_optimizers is not a hook. Use wrap_optimizers.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::forward_gaurd; }) &&
                       requires { requires empty_hook(&T::forward_guard); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: forward_gaurd is not a hook. Use forward_guard.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::foward_guard; }) &&
                       requires { requires empty_hook(&T::forward_guard); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: foward_guard is not a hook. Use forward_guard.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::forward_guards; }) &&
                       requires { requires empty_hook(&T::forward_guard); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: forward_guards is not a hook. Use forward_guard.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::forward_context; }) &&
                       requires { requires empty_hook(&T::forward_guard); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: forward_context is not a hook. Use forward_guard.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::attach_gradient; }) &&
                       requires { requires empty_hook(&T::attach_gradients); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: attach_gradient is not a hook. Use attach_gradients.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::attach_grads; }) &&
                       requires { requires empty_hook(&T::attach_gradients); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: attach_grads is not a hook. Use attach_gradients.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::finish_foward; }) &&
                       requires { requires empty_hook(&T::finish_forward); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: finish_foward is not a hook. Use finish_forward.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::after_forward; }) &&
                       requires { requires empty_hook(&T::before_backward); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: after_forward is not a hook. Use before_backward.");
  } else if constexpr (present<T>(requires { &PolicyProbe<T>::post_forward; }) &&
                       requires { requires empty_hook(&T::before_backward); }) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: post_forward is not a hook. Use before_backward.");
  } else {
    return false;
  }
  return true;
}

}  // namespace dovetail::detail
