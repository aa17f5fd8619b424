// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/logger_hooks.hpp>
#include <dovetail/core/policy_concepts.hpp>
#include <dovetail/core/task_hooks.hpp>

/// What a user may hand over: Strategy and Precision (policy_concepts.hpp), Task, Callback, Logger.

namespace dovetail {

/// What is trained: makes a model and its optimizers, and computes a loss. Whether the steps can be called depends on
/// the model, so fit checks that; here only that they are there.
template <class T>
concept Task = hook::configure_model::found<T> && hook::configure_optimizers::found<T> && hook::training_step::found<T>;

namespace detail {

template <class T, class... Hooks>
consteval bool has_a_hook_of(HookList<Hooks...>) {
  return (has_hook<T, Hooks> || ...);
}

}  // namespace detail

/// Is called at moments of a run: has at least one of the hooks of hooks.hpp.
template <class T>
concept Callback = detail::has_a_hook_of<T>(detail::CallbackHooks{});

/// Takes rows of metrics.
template <class T>
concept Logger = has_hook<T, hook::log_metrics>;

}  // namespace dovetail
