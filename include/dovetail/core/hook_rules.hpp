// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/concepts.hpp>
#include <dovetail/core/near_misses_of_steps.hpp>
#include <dovetail/core/rule.hpp>
#include <type_traits>

/// Rules about Task, Callback and Logger: E020 and up. They are about the user's own class, whatever the policies, so
/// they are errors of fit and have no text at run time.

namespace dovetail {

inline constexpr RuleRow hook_rule_rows[]{
    {"dovetail-E020", When::fit, "a Task without configure_model, configure_optimizers or training_step"},
    {"dovetail-E021", When::fit, "a hook of the right name that cannot be called: other arguments, or not public"},
    {"dovetail-E022", When::fit,
     "a member that is almost a hook and would never be called; of a policy already when a trainer is constructed"},
    {"dovetail-E023", When::fit, "configure_model returns no pointer to a model"},
    {"dovetail-E024", When::fit, "training_step returns no loss"},
    {"dovetail-E025", When::fit, "an argument of fit that is neither a Callback nor a Logger"},
    {"dovetail-E026", When::fit, "configure_optimizers returns no optimizer"},
    {"dovetail-E027", When::fit, "data that is neither a data set nor a data module"},
};

namespace detail {

/// The types that the trainer gives to a Task; core knows no tensors.
template <class ParametersType, class BatchType, class StepContextType, class LossType>
struct FitTypes {
  using Parameters = ParametersType;
  using Batch = BatchType;
  using StepContext = StepContextType;
  using Loss = LossType;
};

// What the compiler prints beside each message.
template <class Task>
inline constexpr bool has_configure_model = hook::configure_model::found<Task>;
template <class Task>
inline constexpr bool has_configure_optimizers = hook::configure_optimizers::found<Task>;
template <class Task>
inline constexpr bool has_training_step = hook::training_step::found<Task>;
template <class T>
inline constexpr bool points_to_a_model = !std::is_pointer_v<T> && requires(T & model) {
  *model;
  model.operator->();
};
template <class T, class Loss>
inline constexpr bool are_losses = false;
template <template <class, std::size_t> class Array, class Loss, std::size_t count>
inline constexpr bool are_losses<Array<Loss, count>, Loss> = count > 0;
template <class T, class Loss>
inline constexpr bool is_a_loss = std::is_convertible_v<T, Loss> || are_losses<std::remove_cvref_t<T>, Loss>;
template <class T>
inline constexpr bool is_an_optimizer = std::is_class_v<std::remove_cvref_t<T>>;  // the trainer knows more
template <class T>
inline constexpr bool has_a_hook = false;
template <class Task, class Hook>
inline constexpr bool calls = false;
template <class Task, class Hook>
inline constexpr bool takes_the_model_by_reference = false;

template <class Task>
struct NoConfigureModel {
  static_assert(has_configure_model<Task>,
                "dovetail-E020: the Task has no configure_model. Use: auto configure_model() const { return "
                "std::make_shared<Net>(); }");
};

template <class Task>
struct NoConfigureOptimizers {
  static_assert(
      has_configure_optimizers<Task>,
      "dovetail-E020: the Task has no configure_optimizers. Use: auto configure_optimizers(const Parameters& p) "
      "const { return AdamW(p, {.lr = 1e-3}); }");
};

template <class Task>
struct NoTrainingStep {
  static_assert(has_training_step<Task>,
                "dovetail-E020: the Task has no training_step. Use: torch::Tensor training_step(Net&, const Batch&, "
                "StepContext&).");
};

template <class Returned>
struct ModelByValue {
  static_assert(
      points_to_a_model<Returned>,
      "dovetail-E023: configure_model returns no owner of a model. Use std::make_shared<Net>(...), a unique_ptr "
      "or a module holder.");
};

template <class Returned>
struct NoOptimizer {
  static_assert(is_an_optimizer<Returned>,
                "dovetail-E026: configure_optimizers returns no optimizer. Use return AdamW(p, {...}), by value, or a "
                "tuple of optimizers.");
};

template <class Task, class Hook>
struct ModelIsCopied {
  static_assert(
      takes_the_model_by_reference<Task, Hook>,
      "dovetail-E021: a step takes the model by value, so what it changes in the model is lost with the copy. Use the "
      "public form: training_step(Model&, const Batch&, StepContext&), likewise for other steps.");
};

template <class Returned, class Loss>
struct NoLoss {
  static_assert(is_a_loss<Returned, Loss>,
                "dovetail-E024: training_step returns no loss. Use return loss, a tensor with one element.");
};

template <class T>
struct NoHook {
  static_assert(
      has_a_hook<T>,
      "dovetail-E025: an argument of fit is neither a Callback nor a Logger, since it has none of their hooks. "
      "Use a class with a hook such as void on_train_epoch_end(LoopState&).");
};

template <class Task, class Hook>
struct HookOfCallback {
  static_assert(
      calls<Task, Hook>,
      "dovetail-E022: a hook of a Callback would never be called in a Task. Use a Callback, and hand it to fit.");
};

/// These report from inside a function, where the names are.
template <class T>
struct NearMissOfMoment {
  NearMissOfMoment() { misses_moment<T, true>(); }
};
template <class Task>
struct NearMissOfStep {
  NearMissOfStep() { misses_step<Task, true>(); }
};
template <class T>
struct NearMissOfLogger {
  NearMissOfLogger() { misses_logger_hook<T, true>(); }
};

}  // namespace detail

}  // namespace dovetail
