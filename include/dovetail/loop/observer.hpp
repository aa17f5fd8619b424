// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/logger_hooks.hpp>
#include <dovetail/loop/state.hpp>

#include <concepts>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace dovetail {

/// Names and values of all options of a run, as text, in the order in which they are to be shown.
using ResolvedOptions = std::vector<std::pair<std::string, std::string>>;

/// What the loop sees of a callback or logger. Virtual, so that the loop is compiled once and not for every list of
/// callbacks; whoever has no hook for steps is not called at steps.
class Observer {
 public:
  Observer() = default;
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;
  virtual ~Observer() = default;

  virtual void on_fit_start(LoopState&) {}
  virtual void on_train_epoch_start(LoopState&) {}
  virtual void on_train_step_end(LoopState&) {}
  virtual void on_train_epoch_end(LoopState&) {}
  virtual void on_validation_start(LoopState&) {}
  virtual void on_validation_end(LoopState&) {}
  virtual void on_fit_end(LoopState&) {}
  virtual void on_exception(LoopState&, const std::exception_ptr&) {}
  virtual void log_metrics(LoopState&, const MetricsRow&) {}
  virtual void log_options(LoopState&, const ResolvedOptions&) {}

  /// Must on_train_step_end be called? Asked once, when the fit begins.
  [[nodiscard]] virtual bool needs_steps() const { return false; }
};

namespace detail {

template <class T>
concept DecidesOnSteps = requires(const T& callback) {
  { callback.needs_steps() } -> std::same_as<bool>;
};

}  // namespace detail

/// A callback or logger as an Observer: calls the hooks that T has. A logger's own hooks (log_metrics, log_options,
/// finish) are called on rank 0 only: rows are the same on every rank, and files are written once.
///
/// A callback that has `bool needs_steps() const` decides at run time whether it wants on_train_step_end.
///
/// @tparam Held  T, or T& where the callback is somebody else's
template <class Held>
class ObserverOf final : public Observer {
  using T = std::remove_reference_t<Held>;

 public:
  explicit ObserverOf(Held&& callback) : callback_(std::forward<Held>(callback)) {}

  void on_fit_start(LoopState& state) override {
    if constexpr (has_hook<T, hook::on_fit_start>) callback_.on_fit_start(state);
  }
  void on_train_epoch_start(LoopState& state) override {
    if constexpr (has_hook<T, hook::on_train_epoch_start>) callback_.on_train_epoch_start(state);
  }
  void on_train_step_end(LoopState& state) override {
    if constexpr (has_hook<T, hook::on_train_step_end>) callback_.on_train_step_end(state);
  }
  void on_train_epoch_end(LoopState& state) override {
    if constexpr (has_hook<T, hook::on_train_epoch_end>) callback_.on_train_epoch_end(state);
  }
  void on_validation_start(LoopState& state) override {
    if constexpr (has_hook<T, hook::on_validation_start>) callback_.on_validation_start(state);
  }
  void on_validation_end(LoopState& state) override {
    if constexpr (has_hook<T, hook::on_validation_end>) callback_.on_validation_end(state);
  }
  void on_fit_end(LoopState& state) override {
    if constexpr (has_hook<T, hook::on_fit_end>) callback_.on_fit_end(state);
    finish(state);
  }
  void on_exception(LoopState& state, const std::exception_ptr& exception) override {
    if constexpr (has_hook<T, hook::on_exception>) callback_.on_exception(state, exception);
    finish(state);
  }
  void log_metrics(LoopState& state, const MetricsRow& row) override {
    if constexpr (has_hook<T, hook::log_metrics>)
      if (state.run.rank() == 0) callback_.log_metrics(row);
  }
  void log_options(LoopState& state, const ResolvedOptions& options) override {
    if constexpr (has_hook<T, hook::log_metrics> && hook::log_options::found<T>) {
      if constexpr (hook::log_options::callable<T, const ResolvedOptions&>) {
        if (state.run.rank() == 0) callback_.log_options(options);
      } else {
        [[maybe_unused]] hook::log_options::Report<T> report;
      }
    }
  }

  [[nodiscard]] bool needs_steps() const override {
    if constexpr (!has_hook<T, hook::on_train_step_end>)
      return false;
    else if constexpr (detail::DecidesOnSteps<T>)
      return callback_.needs_steps();
    else
      return true;
  }

 private:
  void finish(LoopState& state) {
    if constexpr (has_hook<T, hook::log_metrics> && has_hook<T, hook::finish>)
      if (state.run.rank() == 0) callback_.finish();
  }

  Held callback_;
};

/// The observers of one fit, called in the order in which they were added.
class Observers {
 public:
  void add(std::unique_ptr<Observer> observer) {
    if (observer->needs_steps()) steps_.push_back(observer.get());
    all_.push_back(std::move(observer));
  }

  /// A callback or logger. One that has a name is referred to, so that it can be looked at after the fit; a temporary
  /// is moved in, and a const one is copied.
  template <class T>
  requires(!std::convertible_to<T&&, std::unique_ptr<Observer>>) void add(T&& callback) {
    constexpr bool has_name = std::is_lvalue_reference_v<T> && !std::is_const_v<std::remove_reference_t<T>>;
    using Held = std::conditional_t<has_name, T, std::remove_cvref_t<T>>;
    add(std::unique_ptr<Observer>(new ObserverOf<Held>(static_cast<Held>(std::forward<T>(callback)))));
  }

  template <class F>
  void each(F&& visit) {
    for (const auto& observer : all_) visit(*observer);
  }

  /// Only those that want to be called after each step.
  template <class F>
  void each_step(F&& visit) {
    for (Observer* observer : steps_) visit(*observer);
  }

  /// Tells everyone of the exception that ends the fit. What an observer throws meanwhile is dropped: the first
  /// exception is the one that says what went wrong.
  void report(LoopState& state, const std::exception_ptr& exception) noexcept {
    for (const auto& observer : all_) {
      try {
        observer->on_exception(state, exception);
      } catch (...) {
      }
    }
  }

  [[nodiscard]] std::size_t size() const { return all_.size(); }

 private:
  std::vector<std::unique_ptr<Observer>> all_;
  std::vector<Observer*> steps_;
};

}  // namespace dovetail
