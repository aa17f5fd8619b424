// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/logger_hooks.hpp>
#include <dovetail/core/near_misses.hpp>
#include <dovetail/core/task_hooks.hpp>

namespace dovetail::detail {

/// Near misses of the steps of a Task, as in near_misses.hpp.
template <class T, bool reports>
constexpr bool misses_step() {
  if constexpr (instead_of<T, hook::configure_model>(requires { &Probe<T>::configure_models; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: configure_models is not a hook. Use configure_model.");
  } else if constexpr (instead_of<T, hook::configure_model>(requires { &Probe<T>::configure_module; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: configure_module is not a hook. Use configure_model.");
  } else if constexpr (instead_of<T, hook::configure_model>(requires { &Probe<T>::configure_network; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: configure_network is not a hook. Use configure_model.");
  } else if constexpr (instead_of<T, hook::configure_model>(requires { &Probe<T>::build_model; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: build_model is not a hook. Use configure_model.");
  } else if constexpr (instead_of<T, hook::configure_model>(requires { &Probe<T>::make_model; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: make_model is not a hook. Use configure_model.");
  } else if constexpr (instead_of<T, hook::configure_model>(requires { &Probe<T>::create_model; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: create_model is not a hook. Use configure_model.");
  } else if constexpr (instead_of<T, hook::configure_optimizers>(requires { &Probe<T>::configure_optimizer; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: configure_optimizer is not a hook. Use configure_optimizers.");
  } else if constexpr (instead_of<T, hook::configure_optimizers>(requires { &Probe<T>::configure_optimiser; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: configure_optimiser is not a hook. Use configure_optimizers.");
  } else if constexpr (instead_of<T, hook::configure_optimizers>(requires { &Probe<T>::configure_optimisers; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: configure_optimisers is not a hook. Use configure_optimizers.");
  } else if constexpr (instead_of<T, hook::configure_optimizers>(requires { &Probe<T>::build_optimizers; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: build_optimizers is not a hook. Use configure_optimizers.");
  } else if constexpr (instead_of<T, hook::configure_optimizers>(requires { &Probe<T>::make_optimizers; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: make_optimizers is not a hook. Use configure_optimizers.");
  } else if constexpr (instead_of<T, hook::configure_optimizers>(requires { &Probe<T>::make_optimizer; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: make_optimizer is not a hook. Use configure_optimizers.");
  } else if constexpr (instead_of<T, hook::configure_optimizers>(requires { &Probe<T>::create_optimizers; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: create_optimizers is not a hook. Use configure_optimizers.");
  } else if constexpr (instead_of<T, hook::configure_optimizers>(requires { &Probe<T>::create_optimizer; })) {
    static_assert(has_only_hooks<T, reports>,
                  "dovetail-E022: create_optimizer is not a hook. Use configure_optimizers.");
  } else if constexpr (instead_of<T, hook::training_step>(requires { &Probe<T>::train_step; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: train_step is not a hook. Use training_step.");
  } else if constexpr (instead_of<T, hook::training_step>(requires { &Probe<T>::training_steps; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: training_steps is not a hook. Use training_step.");
  } else if constexpr (instead_of<T, hook::validation_step>(requires { &Probe<T>::val_step; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: val_step is not a hook. Use validation_step.");
  } else if constexpr (instead_of<T, hook::validation_step>(requires { &Probe<T>::valid_step; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: valid_step is not a hook. Use validation_step.");
  } else if constexpr (instead_of<T, hook::validation_step>(requires { &Probe<T>::validate_step; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: validate_step is not a hook. Use validation_step.");
  } else if constexpr (instead_of<T, hook::validation_step>(requires { &Probe<T>::validation_steps; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: validation_steps is not a hook. Use validation_step.");
  } else if constexpr (instead_of<T, hook::validation_step>(requires { &Probe<T>::eval_step; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: eval_step is not a hook. Use validation_step.");
  } else if constexpr (instead_of<T, hook::validation_step>(requires { &Probe<T>::evaluation_step; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: evaluation_step is not a hook. Use validation_step.");
  } else if constexpr (instead_of<T, hook::validation_step>(requires { &Probe<T>::evaluate_step; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: evaluate_step is not a hook. Use validation_step.");
  } else if constexpr (instead_of<T, hook::test_step>(requires { &Probe<T>::testing_step; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: testing_step is not a hook. Use test_step.");
  } else if constexpr (instead_of<T, hook::test_step>(requires { &Probe<T>::test_steps; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: test_steps is not a hook. Use test_step.");
  } else if constexpr (instead_of<T, hook::predict_step>(requires { &Probe<T>::prediction_step; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: prediction_step is not a hook. Use predict_step.");
  } else if constexpr (instead_of<T, hook::predict_step>(requires { &Probe<T>::predict_steps; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: predict_steps is not a hook. Use predict_step.");
  } else {
    return false;
  }
  return true;
}

/// Near misses of the hooks of a Logger.
template <class T, bool reports>
constexpr bool misses_logger_hook() {
  if constexpr (instead_of<T, hook::log_metrics>(requires { &Probe<T>::log_metric; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: log_metric is not a hook. Use log_metrics.");
  } else if constexpr (instead_of<T, hook::log_metrics>(requires { &Probe<T>::write_metrics; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: write_metrics is not a hook. Use log_metrics.");
  } else if constexpr (instead_of<T, hook::log_metrics>(requires { &Probe<T>::log_scalars; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: log_scalars is not a hook. Use log_metrics.");
  } else if constexpr (instead_of<T, hook::log_options>(requires { &Probe<T>::log_option; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: log_option is not a hook. Use log_options.");
  } else if constexpr (instead_of<T, hook::log_options>(requires { &Probe<T>::log_hyperparams; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: log_hyperparams is not a hook. Use log_options.");
  } else if constexpr (instead_of<T, hook::log_options>(requires { &Probe<T>::log_hyperparameters; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: log_hyperparameters is not a hook. Use log_options.");
  } else if constexpr (instead_of<T, hook::log_options>(requires { &Probe<T>::log_hparams; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: log_hparams is not a hook. Use log_options.");
  } else if constexpr (instead_of<T, hook::finish>(requires { &Probe<T>::finalize; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: finalize is not a hook. Use finish.");
  } else if constexpr (instead_of<T, hook::finish>(requires { &Probe<T>::on_finish; })) {
    static_assert(has_only_hooks<T, reports>, "dovetail-E022: on_finish is not a hook. Use finish.");
  } else {
    return false;
  }
  return true;
}

}  // namespace dovetail::detail
