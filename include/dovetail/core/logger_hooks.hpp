// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/hooks.hpp>

/// What a Logger does, one struct each, as in hooks.hpp.
namespace dovetail::hook {

/// Takes one row of metrics, on rank 0.
struct log_metrics {
  static constexpr std::string_view name = "log_metrics";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::log_metrics; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.log_metrics(static_cast<Arguments&&>(arguments)...);
  };
  template <class T>
  static constexpr bool fits = callable<T, const MetricsRow&>;
  template <class T>
  struct Report {
    static_assert(
        detail::hook_can_be_called<T, log_metrics>,
        "dovetail-E021: log_metrics is there, but cannot be called with what it is given. Use the public form: "
        "void log_metrics(const MetricsRow&).");
  };
};

/// Takes the resolved options of the run.
struct log_options {
  static constexpr std::string_view name = "log_options";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::log_options; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.log_options(static_cast<Arguments&&>(arguments)...);
  };
  template <class T>
  struct Report {
    static_assert(
        detail::hook_can_be_called<T, log_options>,
        "dovetail-E021: log_options is there, but cannot be called with what it is given. Use the public form: "
        "void log_options(const Options&).");
  };
};

/// The run is over: what is still in memory is written.
struct finish {
  static constexpr std::string_view name = "finish";
  template <class T>
  static constexpr bool found = detail::present<T>(requires { &detail::Probe<T>::finish; });
  template <class T, class... Arguments>
  static constexpr bool callable = requires(T& object, Arguments&&... arguments) {
    object.finish(static_cast<Arguments&&>(arguments)...);
  };
  template <class T>
  static constexpr bool fits = callable<T>;
  template <class T>
  struct Report {
    static_assert(detail::hook_can_be_called<T, finish>,
                  "dovetail-E021: finish is there, but cannot be called with what it is given. Use the public form: "
                  "void finish().");
  };
};

}  // namespace dovetail::hook
