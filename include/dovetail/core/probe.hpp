// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

namespace dovetail::detail {

/// The names that are looked for in a Task, a Callback or a Logger: the hooks, and names that are almost a hook's,
/// because another framework has them or a word is missing or another one. No name that torch::nn::Module has: a Task
/// may be one.
struct HookNames {
  // The hooks.
  int on_fit_start, on_fit_end, on_train_epoch_start, on_train_epoch_end, on_train_step_end, on_validation_start,
      on_validation_end, on_exception, configure_model, configure_optimizers, training_step, validation_step, test_step,
      predict_step, log_metrics, log_options, finish;

  // Near misses; what is meant stands in near_misses.hpp.
  int on_fit_begin, on_train_start, on_train_begin, on_training_start, on_training_begin, on_fit_finish, on_train_end,
      on_train_finish, on_training_end, on_epoch_start, on_epoch_begin, on_train_epoch_begin, on_training_epoch_start,
      on_training_epoch_begin, on_train_epochs_start, on_epoch_end, on_epoch_finish, on_training_epoch_end,
      on_train_epoch_finish, on_train_epochs_end, on_train_batch_end, on_batch_end, on_step_end, on_training_step_end,
      on_train_steps_end, on_training_batch_end, on_train_batch_start, on_train_batch_begin, on_batch_start,
      on_batch_begin, on_step_start, on_step_begin, on_train_step_start, on_train_step_begin, on_validation_begin,
      on_validation_epoch_start, on_validation_epoch_begin, on_val_start, on_val_begin, on_validate_start,
      on_validate_begin, on_evaluation_start, on_eval_start, on_sanity_check_start, on_validation_finish,
      on_validation_epoch_end, on_val_end, on_val_epoch_end, on_validate_end, on_evaluation_end, on_eval_end,
      on_evaluate, on_sanity_check_end, on_validation_batch_end, on_validation_step_end, on_exceptions, on_error,
      on_keyboard_interrupt, on_failure, on_before_backward, on_after_backward, on_backward_end,
      on_before_optimizer_step, on_pre_optimizer_step, on_before_step, on_before_zero_grad, on_optimizer_step,
      on_after_optimizer_step, on_after_step, fit_start, train_start, fit_end, train_end, train_epoch_start,
      training_epoch_start, train_epoch_end, training_epoch_end, validation_start, validation_epoch_start,
      validation_end, validation_epoch_end, configure_models, configure_module, configure_network, build_model,
      make_model, create_model, configure_optimizer, configure_optimiser, configure_optimisers, build_optimizers,
      make_optimizers, make_optimizer, create_optimizers, create_optimizer, train_step, training_steps, val_step,
      valid_step, validate_step, validation_steps, eval_step, evaluation_step, evaluate_step, testing_step, test_steps,
      prediction_step, predict_steps, log_metric, write_metrics, log_scalars, log_option, log_hyperparams,
      log_hyperparameters, log_hparams, finalize, on_finish;
};

template <class T>
struct ProbeOf : T, HookNames {};

/// Where `&Probe<T>::name` is looked up. It inherits from T and from a struct that has the name, so the look-up is
/// ambiguous, hence ill-formed, exactly if T has a member of that name: of any kind, overloaded, a template, private or
/// inherited, which `&T::name` would miss. A final class cannot be inherited from; there `&T::name` has to do.
template <class T>
using Probe = std::conditional_t<std::is_class_v<T> && !std::is_final_v<T>, ProbeOf<T>, T>;

/// Has T the member? `well_formed` is `requires { &Probe<T>::name; }`.
template <class T>
consteval bool present(bool well_formed) {
  return std::is_class_v<T> && !std::is_final_v<T> ? !well_formed : well_formed;
}

}  // namespace dovetail::detail
