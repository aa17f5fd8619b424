// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/hooks.hpp>

/// Members that are almost hooks and would silently never be called (E022). C++20 cannot list the members of a class,
/// so these are tables: other frameworks' names, begin and start, singular and plural, a missing on_, dropped words.
/// Names that say on_ are always refused; others, which may be a user's own helpers, only where the hook meant is
/// missing.

namespace dovetail::detail {

/// What the compiler prints beside the message.
template <class T, bool reports>
inline constexpr bool has_only_hooks = !reports;

/// Is there such a member, and not the hook that it is near to?
template <class T, class Hook>
consteval bool instead_of(bool well_formed) {
  return present<T>(well_formed) && !Hook::template found<T>;
}

/// The moments of a Task or a Callback. With `reports` the first near miss is an error; without, only the answer
/// counts.
template <class T, bool reports>
constexpr bool misses_moment() {
  if constexpr (present<T>(requires { &Probe<T>::on_fit_begin; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_fit_begin is not a hook. Use on_fit_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_train_start; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_train_start is not a hook. Use on_fit_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_train_begin; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_train_begin is not a hook. Use on_fit_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_training_start; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_training_start is not a hook. Use on_fit_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_training_begin; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_training_begin is not a hook. Use on_fit_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_fit_finish; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_fit_finish is not a hook. Use on_fit_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_train_end; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_train_end is not a hook. Use on_fit_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_train_finish; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_train_finish is not a hook. Use on_fit_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_training_end; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_training_end is not a hook. Use on_fit_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_epoch_start; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_epoch_start is not a hook. Use on_train_epoch_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_epoch_begin; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_epoch_begin is not a hook. Use on_train_epoch_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_train_epoch_begin; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_train_epoch_begin is not a hook. Use on_train_epoch_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_training_epoch_start; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_training_epoch_start is not a hook. Use on_train_epoch_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_training_epoch_begin; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_training_epoch_begin is not a hook. Use on_train_epoch_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_train_epochs_start; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_train_epochs_start is not a hook. Use on_train_epoch_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_epoch_end; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_epoch_end is not a hook. Use on_train_epoch_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_epoch_finish; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_epoch_finish is not a hook. Use on_train_epoch_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_training_epoch_end; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_training_epoch_end is not a hook. Use on_train_epoch_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_train_epoch_finish; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_train_epoch_finish is not a hook. Use on_train_epoch_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_train_epochs_end; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_train_epochs_end is not a hook. Use on_train_epoch_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_train_batch_end; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_train_batch_end is not a hook. Use on_train_step_end of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_batch_end; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_batch_end is not a hook. Use on_train_step_end of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_step_end; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_step_end is not a hook. Use on_train_step_end of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_training_step_end; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_training_step_end is not a hook. Use on_train_step_end of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_train_steps_end; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_train_steps_end is not a hook. Use on_train_step_end of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_training_batch_end; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_training_batch_end is not a hook. Use on_train_step_end of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_train_batch_start; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_train_batch_start is not a hook. Use on_train_step_end of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_train_batch_begin; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_train_batch_begin is not a hook. Use on_train_step_end of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_batch_start; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_batch_start is not a hook. Use on_train_step_end of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_batch_begin; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_batch_begin is not a hook. Use on_train_step_end of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_step_start; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_step_start is not a hook. Use on_train_step_end of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_step_begin; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_step_begin is not a hook. Use on_train_step_end of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_train_step_start; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_train_step_start is not a hook. Use on_train_step_end of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_train_step_begin; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_train_step_begin is not a hook. Use on_train_step_end of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_validation_begin; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_validation_begin is not a hook. Use on_validation_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_validation_epoch_start; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_validation_epoch_start is not a hook. Use on_validation_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_validation_epoch_begin; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_validation_epoch_begin is not a hook. Use on_validation_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_val_start; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_val_start is not a hook. Use on_validation_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_val_begin; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_val_begin is not a hook. Use on_validation_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_validate_start; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_validate_start is not a hook. Use on_validation_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_validate_begin; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_validate_begin is not a hook. Use on_validation_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_evaluation_start; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_evaluation_start is not a hook. Use on_validation_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_eval_start; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_eval_start is not a hook. Use on_validation_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_sanity_check_start; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_sanity_check_start is not a hook. Use on_validation_start.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_validation_finish; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_validation_finish is not a hook. Use on_validation_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_validation_epoch_end; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_validation_epoch_end is not a hook. Use on_validation_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_val_end; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_val_end is not a hook. Use on_validation_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_val_epoch_end; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_val_epoch_end is not a hook. Use on_validation_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_validate_end; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_validate_end is not a hook. Use on_validation_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_evaluation_end; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_evaluation_end is not a hook. Use on_validation_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_eval_end; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_eval_end is not a hook. Use on_validation_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_evaluate; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_evaluate is not a hook. Use on_validation_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_sanity_check_end; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_sanity_check_end is not a hook. Use on_validation_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_validation_batch_end; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_validation_batch_end is not a hook. Use on_validation_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_validation_step_end; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_validation_step_end is not a hook. Use on_validation_end.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_exceptions; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_exceptions is not a hook. Use on_exception of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_error; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_error is not a hook. Use on_exception of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_keyboard_interrupt; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_keyboard_interrupt is not a hook. Use on_exception of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_failure; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_failure is not a hook. Use on_exception of a Callback.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_before_backward; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_before_backward is not a hook. Use before_backward of a Strategy.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_after_backward; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_after_backward is not a hook. Use after_backward of a Strategy.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_backward_end; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_backward_end is not a hook. Use after_backward of a Strategy.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_before_optimizer_step; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_before_optimizer_step is not a hook. Use before_step of a Strategy.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_pre_optimizer_step; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_pre_optimizer_step is not a hook. Use before_step of a Strategy.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_before_step; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_before_step is not a hook. Use before_step of a Strategy.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_before_zero_grad; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_before_zero_grad is not a hook. Use after_step of a Strategy.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_optimizer_step; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_optimizer_step is not a hook. Use after_step of a Strategy.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_after_optimizer_step; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_after_optimizer_step is not a hook. Use after_step of a Strategy.");
  } else if constexpr (present<T>(requires { &Probe<T>::on_after_step; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: on_after_step is not a hook. Use after_step of a Strategy.");
  } else if constexpr (instead_of<T, hook::on_fit_start>(requires { &Probe<T>::fit_start; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: fit_start is not a hook. Use on_fit_start.");
  } else if constexpr (instead_of<T, hook::on_fit_start>(requires { &Probe<T>::train_start; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: train_start is not a hook. Use on_fit_start.");
  } else if constexpr (instead_of<T, hook::on_fit_end>(requires { &Probe<T>::fit_end; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: fit_end is not a hook. Use on_fit_end.");
  } else if constexpr (instead_of<T, hook::on_fit_end>(requires { &Probe<T>::train_end; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: train_end is not a hook. Use on_fit_end.");
  } else if constexpr (instead_of<T, hook::on_train_epoch_start>(requires { &Probe<T>::train_epoch_start; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: train_epoch_start is not a hook. Use on_train_epoch_start.");
  } else if constexpr (instead_of<T, hook::on_train_epoch_start>(requires { &Probe<T>::training_epoch_start; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: training_epoch_start is not a hook. Use on_train_epoch_start.");
  } else if constexpr (instead_of<T, hook::on_train_epoch_end>(requires { &Probe<T>::train_epoch_end; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: train_epoch_end is not a hook. Use on_train_epoch_end.");
  } else if constexpr (instead_of<T, hook::on_train_epoch_end>(requires { &Probe<T>::training_epoch_end; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: training_epoch_end is not a hook. Use on_train_epoch_end.");
  } else if constexpr (instead_of<T, hook::on_validation_start>(requires { &Probe<T>::validation_start; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: validation_start is not a hook. Use on_validation_start.");
  } else if constexpr (instead_of<T, hook::on_validation_start>(requires { &Probe<T>::validation_epoch_start; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: validation_epoch_start is not a hook. Use on_validation_start.");
  } else if constexpr (instead_of<T, hook::on_validation_end>(requires { &Probe<T>::validation_end; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: validation_end is not a hook. Use on_validation_end.");
  } else if constexpr (instead_of<T, hook::on_validation_end>(requires { &Probe<T>::validation_epoch_end; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: validation_epoch_end is not a hook. Use on_validation_end.");
  } else {
    return false;
  }
  return true;
}

}  // namespace dovetail::detail
