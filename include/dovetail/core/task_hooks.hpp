// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/hooks.hpp>
#include <utility>

/// What a Task does, one struct each, as in hooks.hpp. Their argument types are known only where tensors are, so
/// whoever judges gives them: `training_step::callable<T, Model&, const Batch&, StepContext&>`. `has_form` says of a
/// step whether it is, or has among its overloads, a function of exactly that type; a generic one is deduced from it.
namespace dovetail::hook {

/// Makes the model.
struct configure_model {
  static constexpr std::string_view name = "configure_model";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::configure_model; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.configure_model(static_cast<Arguments&&>(arguments)...);
  };
  template <class T>
  struct Report {
    static_assert(
        detail::hook_can_be_called<T, configure_model>,
        "dovetail-E021: configure_model is there, but cannot be called with what it is given. Use the public form: "
        "auto configure_model() const.");
  };
};

/// Makes the optimizers, once per fit.
struct configure_optimizers {
  static constexpr std::string_view name = "configure_optimizers";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::configure_optimizers; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.configure_optimizers(static_cast<Arguments&&>(arguments)...);
  };
  template <class T>
  struct Report {
    static_assert(detail::hook_can_be_called<T, configure_optimizers>,
                  "dovetail-E021: configure_optimizers is there, but cannot be called with what it is given. Use the "
                  "public form: "
                  "auto configure_optimizers(const Parameters&) const.");
  };
};

/// Computes the loss of one micro-batch.
struct training_step {
  static constexpr std::string_view name = "training_step";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::training_step; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.training_step(static_cast<Arguments&&>(arguments)...);
  };
  template <class T, class... Arguments>
  using Result = decltype(std::declval<T&>().training_step(std::declval<Arguments>()...));
  template <class T, class Pointer>
  static constexpr bool has_form = requires {
    static_cast<Pointer>(&T::training_step);
  };
  template <class T>
  struct Report {
    static_assert(
        detail::hook_can_be_called<T, training_step>,
        "dovetail-E021: training_step is there, but cannot be called with what it is given. Use the public form: "
        "torch::Tensor training_step(Model&, const Batch&, StepContext&), Model being what configure_model points to.");
  };
};

/// Looks at one batch of validation.
struct validation_step {
  static constexpr std::string_view name = "validation_step";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::validation_step; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.validation_step(static_cast<Arguments&&>(arguments)...);
  };
  template <class T, class... Arguments>
  using Result = decltype(std::declval<T&>().validation_step(std::declval<Arguments>()...));
  template <class T, class Pointer>
  static constexpr bool has_form = requires {
    static_cast<Pointer>(&T::validation_step);
  };
  template <class T>
  struct Report {
    static_assert(
        detail::hook_can_be_called<T, validation_step>,
        "dovetail-E021: validation_step is there, but cannot be called with what it is given. Use the public form: "
        "void validation_step(Model&, const Batch&, StepContext&), Model being what configure_model points to.");
  };
};

/// Looks at one batch of a test.
struct test_step {
  static constexpr std::string_view name = "test_step";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::test_step; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.test_step(static_cast<Arguments&&>(arguments)...);
  };
  template <class T, class... Arguments>
  using Result = decltype(std::declval<T&>().test_step(std::declval<Arguments>()...));
  template <class T, class Pointer>
  static constexpr bool has_form = requires {
    static_cast<Pointer>(&T::test_step);
  };
  template <class T>
  struct Report {
    static_assert(detail::hook_can_be_called<T, test_step>,
                  "dovetail-E021: test_step is there, but cannot be called with what it is given. Use the public form: "
                  "void test_step(Model&, const Batch&, StepContext&), Model being what configure_model points to.");
  };
};

/// Computes what is predicted for one batch.
struct predict_step {
  static constexpr std::string_view name = "predict_step";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::predict_step; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.predict_step(static_cast<Arguments&&>(arguments)...);
  };
  template <class T, class... Arguments>
  using Result = decltype(std::declval<T&>().predict_step(std::declval<Arguments>()...));
  template <class T, class Pointer>
  static constexpr bool has_form = requires {
    static_cast<Pointer>(&T::predict_step);
  };
  template <class T>
  struct Report {
    static_assert(
        detail::hook_can_be_called<T, predict_step>,
        "dovetail-E021: predict_step is there, but cannot be called with what it is given. Use the public form: "
        "auto predict_step(Model&, const Batch&, StepContext&), Model being what configure_model points to.");
  };
};

}  // namespace dovetail::hook
