// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/loop/state.hpp>

#include <exception>
#include <functional>

namespace dovetail {

/// A function, or nothing, which can be called too.
template <class... Arguments>
struct OptionalFunction : std::function<void(Arguments...)> {
  using Base = std::function<void(Arguments...)>;
  using Base::Base;

  void operator()(Arguments... arguments) const {
    if (*this) Base::operator()(arguments...);
  }
};

/// A callback made of functions, for what is not worth a class:
///
///     dt::LambdaCallback{.on_train_step_end = [&](dt::LoopState& state) { losses.push_back(state.loss); }}
///
/// Functions run on every rank; `state.run.rank()` tells which.
struct LambdaCallback {
  using Function = OptionalFunction<LoopState&>;

  Function on_fit_start{};
  Function on_train_epoch_start{};
  Function on_train_step_end{};
  Function on_train_epoch_end{};
  Function on_validation_start{};
  Function on_validation_end{};
  Function on_fit_end{};
  OptionalFunction<LoopState&, const std::exception_ptr&> on_exception{};

  [[nodiscard]] bool needs_steps() const { return static_cast<bool>(on_train_step_end); }
};

}  // namespace dovetail
