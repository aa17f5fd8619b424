// SPDX-License-Identifier: Apache-2.0
#pragma once

// The rules come first and directly: the compiler prints the chain of includes above each report.
#include <dovetail/core/hooks.hpp>
#include <dovetail/core/logger_hooks.hpp>
#include <dovetail/core/near_misses.hpp>
#include <dovetail/core/near_misses_of_steps.hpp>
#include <dovetail/core/task_hooks.hpp>
// Above them all.
#include <dovetail/core/hook_rules.hpp>
#include <dovetail/core/report.hpp>
#include <utility>

/// The reports on Task, Callback and Logger. fit instantiates `TaskReport<Task, Types>` and, for each further argument,
/// `CallbackReport<T>`; it does nothing more unless `fits_task<Task, Types>` and `fits_callback<T>`.

namespace dovetail::detail {

template <class Report>
consteval auto report_of() {
  return std::type_identity<Report>{};
}

/// The first hook of the list that is found and does not fit.
template <class T>
consteval auto find_misfit(HookList<>) {
  return report_of<NoReport>();
}
template <class T, class Hook, class... Rest>
consteval auto find_misfit(HookList<Hook, Rest...>) {
  if constexpr (Hook::template found<T> && !Hook::template fits<T>)
    return report_of<typename Hook::template Report<T>>();
  else
    return find_misfit<T>(HookList<Rest...>{});
}
template <class T, class Hooks>
using Misfit = typename decltype(find_misfit<T>(Hooks{}))::type;

/// Is there a step of this type in the class, for objects of any kind?
template <class Step, class Task, class Returned, class... Arguments>
inline constexpr bool has_form = Step::template has_form<Task, Returned (Task::*)(Arguments...)> ||
                                 Step::template has_form<Task, Returned (Task::*)(Arguments...) const> ||
                                 Step::template has_form<Task, Returned (*)(Arguments...)>;

/// Does a step that can be called take a copy of the model?
template <class Step, class Task, class Returned, class Model, class Batch, class Context>
inline constexpr bool copies_the_model = has_form<Step, Task, Returned, Model, const Batch&, Context&> ||
                                         has_form<Step, Task, Returned, Model, Batch, Context&> ||
                                         has_form<Step, Task, Returned, Model, const Batch&, const Context&> ||
                                         has_form<Step, Task, Returned, Model, Batch, const Context&>;

/// What the first of the steps that does not fit is reported as, and what it returns: a step that is not there, or
/// whose own body is in error, is nobody's.
template <class Task, class Types, class Model, class Step>
consteval auto find_report_of_step() {
  using Batch = typename Types::Batch;
  using Context = typename Types::StepContext;
  if constexpr (!Step::template callable<Task, Model&, const Batch&, Context&>)
    return report_of<typename Step::template Report<Task>>();
  else if constexpr (requires { typename Step::template Result<Task, Model&, const Batch&, Context&>; }) {
    using Returned = typename Step::template Result<Task, Model&, const Batch&, Context&>;
    if constexpr (copies_the_model<Step, std::remove_cv_t<Task>, Returned, Model, Batch, Context>)
      return report_of<ModelIsCopied<Task, Step>>();
    else if constexpr (std::is_same_v<Step, hook::training_step> && !is_a_loss<Returned, typename Types::Loss>)
      return report_of<NoLoss<Returned, typename Types::Loss>>();
    else
      return report_of<NoReport>();
  } else {
    return report_of<NoReport>();
  }
}

/// The steps, which see the model.
template <class Task, class Types, class Model>
consteval auto find_step_report(HookList<>) {
  return report_of<NoReport>();
}
template <class Task, class Types, class Model, class Step, class... Rest>
consteval auto find_step_report(HookList<Step, Rest...>) {
  if constexpr (Step::template found<Task>) {
    using Report = typename decltype(find_report_of_step<Task, Types, Model, Step>())::type;
    if constexpr (!std::is_same_v<Report, NoReport>)
      return report_of<Report>();
    else
      return find_step_report<Task, Types, Model>(HookList<Rest...>{});
  } else {
    return find_step_report<Task, Types, Model>(HookList<Rest...>{});
  }
}
using Steps = HookList<hook::training_step, hook::validation_step, hook::test_step, hook::predict_step>;

/// Model and optimizers.
template <class Task, class Types>
consteval auto find_configure_report() {
  if constexpr (!hook::configure_model::found<Task>) {
    return report_of<NoConfigureModel<Task>>();
  } else if constexpr (!hook::configure_optimizers::found<Task>) {
    return report_of<NoConfigureOptimizers<Task>>();
  } else if constexpr (!hook::training_step::found<Task>) {
    return report_of<NoTrainingStep<Task>>();
  } else if constexpr (!hook::configure_model::callable<Task>) {
    return report_of<hook::configure_model::Report<Task>>();
  } else if constexpr (!hook::configure_optimizers::callable<Task, const typename Types::Parameters&>) {
    return report_of<hook::configure_optimizers::Report<Task>>();
  } else {
    using Pointer = decltype(std::declval<Task&>().configure_model());
    using Optimizer =
        decltype(std::declval<Task&>().configure_optimizers(std::declval<const typename Types::Parameters&>()));
    if constexpr (!points_to_a_model<Pointer>)
      return report_of<ModelByValue<Pointer>>();
    else if constexpr (!is_an_optimizer<Optimizer>)
      return report_of<NoOptimizer<Optimizer>>();
    else
      return find_step_report<Task, Types, std::remove_reference_t<decltype(*std::declval<Pointer&>())>>(Steps{});
  }
}

template <class Task, class Types>
consteval auto find_task_report() {
  if constexpr (misses_step<Task, false>())
    return report_of<NearMissOfStep<Task>>();
  else if constexpr (!std::is_same_v<typename decltype(find_configure_report<Task, Types>())::type, NoReport>)
    return find_configure_report<Task, Types>();
  else if constexpr (misses_moment<Task, false>())
    return report_of<NearMissOfMoment<Task>>();
  else if constexpr (hook::on_train_step_end::found<Task>)
    return report_of<HookOfCallback<Task, hook::on_train_step_end>>();
  else if constexpr (hook::on_exception::found<Task>)
    return report_of<HookOfCallback<Task, hook::on_exception>>();
  else
    return report_of<Misfit<Task, TaskHooks>>();
}

/// An empty struct; for a Task that fit refuses, the one error. `Types` is a FitTypes.
template <class Task, class Types>
using TaskReport = typename decltype(find_task_report<Task, Types>())::type;
template <class Task, class Types>
inline constexpr bool fits_task = std::is_same_v<TaskReport<Task, Types>, NoReport>;

using LoggerHooks = HookList<hook::log_metrics, hook::finish>;

template <class T>
consteval auto find_callback_report() {
  if constexpr (misses_moment<T, false>())
    return report_of<NearMissOfMoment<T>>();
  else if constexpr (!std::is_same_v<Misfit<T, CallbackHooks>, NoReport>)
    return report_of<Misfit<T, CallbackHooks>>();
  else if constexpr ((hook::log_metrics::found<T> || !has_any_of<T>(CallbackHooks{})) && misses_logger_hook<T, false>())
    return report_of<NearMissOfLogger<T>>();
  else if constexpr (hook::log_metrics::found<T>)
    return report_of<Misfit<T, LoggerHooks>>();
  else if constexpr (!has_any_of<T>(CallbackHooks{}))
    return report_of<NoHook<T>>();
  else
    return report_of<NoReport>();
}

/// The same for a Callback or a Logger.
template <class T>
using CallbackReport = typename decltype(find_callback_report<T>())::type;
template <class T>
inline constexpr bool fits_callback = std::is_same_v<CallbackReport<T>, NoReport>;

}  // namespace dovetail::detail
