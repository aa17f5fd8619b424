// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/probe.hpp>
#include <exception>
#include <string_view>

namespace dovetail {

class LoopState;
struct MetricsRow;

namespace detail {

/// What the compiler prints beside the message: the type and the hook.
template <class T, class Hook>
inline constexpr bool hook_can_be_called = false;

}  // namespace detail

/// The moments at which a Task, a Callback or a Logger may be called, one struct each: `found<T>` says that T has a
/// member of that name, whatever it is; `fits<T>` that it can be called the way the loop does it; `Report<T>` is the
/// error for a hook that is found and does not fit. A new moment is one struct here, its name in probe.hpp, and its
/// call in the loop.
namespace hook {

/// The model and its optimizers are set up, nothing has run.
struct on_fit_start {
  static constexpr std::string_view name = "on_fit_start";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::on_fit_start; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.on_fit_start(static_cast<Arguments&&>(arguments)...);
  };
  template <class T>
  static constexpr bool fits = callable<T, LoopState&>;
  template <class T>
  struct Report {
    static_assert(
        detail::hook_can_be_called<T, on_fit_start>,
        "dovetail-E021: on_fit_start is there, but cannot be called with what it is given. Use the public form: "
        "void on_fit_start(LoopState&).");
  };
};

/// After the last step, on every way out but an exception.
struct on_fit_end {
  static constexpr std::string_view name = "on_fit_end";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::on_fit_end; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.on_fit_end(static_cast<Arguments&&>(arguments)...);
  };
  template <class T>
  static constexpr bool fits = callable<T, LoopState&>;
  template <class T>
  struct Report {
    static_assert(
        detail::hook_can_be_called<T, on_fit_end>,
        "dovetail-E021: on_fit_end is there, but cannot be called with what it is given. Use the public form: "
        "void on_fit_end(LoopState&).");
  };
};

/// Before the first batch of an epoch.
struct on_train_epoch_start {
  static constexpr std::string_view name = "on_train_epoch_start";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::on_train_epoch_start; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.on_train_epoch_start(static_cast<Arguments&&>(arguments)...);
  };
  template <class T>
  static constexpr bool fits = callable<T, LoopState&>;
  template <class T>
  struct Report {
    static_assert(detail::hook_can_be_called<T, on_train_epoch_start>,
                  "dovetail-E021: on_train_epoch_start is there, but cannot be called with what it is given. Use the "
                  "public form: "
                  "void on_train_epoch_start(LoopState&).");
  };
};

/// After the last step of an epoch and its validation.
struct on_train_epoch_end {
  static constexpr std::string_view name = "on_train_epoch_end";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::on_train_epoch_end; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.on_train_epoch_end(static_cast<Arguments&&>(arguments)...);
  };
  template <class T>
  static constexpr bool fits = callable<T, LoopState&>;
  template <class T>
  struct Report {
    static_assert(
        detail::hook_can_be_called<T, on_train_epoch_end>,
        "dovetail-E021: on_train_epoch_end is there, but cannot be called with what it is given. Use the public form: "
        "void on_train_epoch_end(LoopState&).");
  };
};

/// After an optimizer step, taken or skipped.
struct on_train_step_end {
  static constexpr std::string_view name = "on_train_step_end";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::on_train_step_end; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.on_train_step_end(static_cast<Arguments&&>(arguments)...);
  };
  template <class T>
  static constexpr bool fits = callable<T, LoopState&>;
  template <class T>
  struct Report {
    static_assert(
        detail::hook_can_be_called<T, on_train_step_end>,
        "dovetail-E021: on_train_step_end is there, but cannot be called with what it is given. Use the public form: "
        "void on_train_step_end(LoopState&).");
  };
};

/// Before the first validation batch; `sanity` says whether it is the check before training.
struct on_validation_start {
  static constexpr std::string_view name = "on_validation_start";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::on_validation_start; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.on_validation_start(static_cast<Arguments&&>(arguments)...);
  };
  template <class T>
  static constexpr bool fits = callable<T, LoopState&>;
  template <class T>
  struct Report {
    static_assert(
        detail::hook_can_be_called<T, on_validation_start>,
        "dovetail-E021: on_validation_start is there, but cannot be called with what it is given. Use the public form: "
        "void on_validation_start(LoopState&).");
  };
};

/// The metrics of validation are there, reduced over ranks.
struct on_validation_end {
  static constexpr std::string_view name = "on_validation_end";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::on_validation_end; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.on_validation_end(static_cast<Arguments&&>(arguments)...);
  };
  template <class T>
  static constexpr bool fits = callable<T, LoopState&>;
  template <class T>
  struct Report {
    static_assert(
        detail::hook_can_be_called<T, on_validation_end>,
        "dovetail-E021: on_validation_end is there, but cannot be called with what it is given. Use the public form: "
        "void on_validation_end(LoopState&).");
  };
};

/// An exception is about to leave fit; it is thrown on after the last callback.
struct on_exception {
  static constexpr std::string_view name = "on_exception";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::on_exception; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.on_exception(static_cast<Arguments&&>(arguments)...);
  };
  template <class T>
  static constexpr bool fits = callable<T, LoopState&, const std::exception_ptr&>;
  template <class T>
  struct Report {
    static_assert(
        detail::hook_can_be_called<T, on_exception>,
        "dovetail-E021: on_exception is there, but cannot be called with what it is given. Use the public form: "
        "void on_exception(LoopState&, const std::exception_ptr&).");
  };
};

}  // namespace hook

namespace detail {

template <class... Hooks>
struct HookList {};

using TaskHooks = HookList<hook::on_fit_start, hook::on_fit_end, hook::on_train_epoch_start, hook::on_train_epoch_end,
                           hook::on_validation_start, hook::on_validation_end>;
using CallbackHooks =
    HookList<hook::on_fit_start, hook::on_fit_end, hook::on_train_epoch_start, hook::on_train_epoch_end,
             hook::on_train_step_end, hook::on_validation_start, hook::on_validation_end, hook::on_exception>;

template <class T, class... Hooks>
consteval bool has_any_of(HookList<Hooks...>) {
  return (Hooks::template found<T> || ...);
}

}  // namespace detail

/// Has T this hook, in a form the loop can call? `if constexpr (has_hook<T, hook::on_fit_end>)
/// object.on_fit_end(state);`
template <class T, class Hook>
inline constexpr bool has_hook = Hook::template found<T>&& Hook::template fits<T>;

}  // namespace dovetail
