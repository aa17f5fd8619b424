// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <dovetail/optim/schedule.hpp>

#include <cmath>
#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace dovetail {

/// What a schedule counts: optimizer steps that were taken, or epochs.
enum class Interval { step, epoch };

struct ScheduledOptions {
  Interval interval = Interval::step;
  std::string monitor{};  ///< the metric for a scheduler of LibTorch whose step takes one
};

/// An optimizer and its schedule, from `scheduled`.
template <class Optimizer, class Schedule>
struct Scheduled {
  Optimizer optimizer;
  Schedule schedule;
  ScheduledOptions options;
};

/// A struct with `double factor(int64_t taken) const`.
template <class S>
concept FactorSchedule = requires(const S& schedule, int64_t taken) {
  { schedule.factor(taken) } -> std::convertible_to<double>;
};

/// A callable that makes one of LibTorch's schedulers for the optimizer that it is given.
template <class S>
concept SchedulerFactory = std::invocable<S&, torch::optim::Optimizer&>;

/// Gives an optimizer a schedule, in configure_optimizers:
///
///     return dt::scheduled(dt::AdamW(p), dt::WarmupCosine{.warmup_steps = 100, .total_steps = 2000});
///     return dt::scheduled(dt::SGD(p), [](auto& optimizer) { return torch::optim::StepLR(optimizer, 10, 0.1); },
///                          {.interval = dt::Interval::epoch});
///
/// The optimizer is given by value, unique_ptr or shared_ptr. Throws Error{user_code} for options out of range.
template <class Optimizer, class Schedule>
Scheduled<Optimizer, Schedule> scheduled(Optimizer optimizer, Schedule schedule, ScheduledOptions options = {}) {
  static_assert(
      FactorSchedule<Schedule> || SchedulerFactory<Schedule> || std::same_as<Schedule, Plateau>,
      "dovetail: a schedule is a struct with `double factor(int64_t taken) const`, dt::Plateau, or a callable that "
      "takes torch::optim::Optimizer& and returns one of LibTorch's schedulers.");
  if constexpr (requires { schedule.check(); }) schedule.check();
  return {std::move(optimizer), std::move(schedule), std::move(options)};
}

/// A schedule at work on an optimizer. The run tells it what happened; it sets learning rates.
class BoundSchedule {
 public:
  virtual ~BoundSchedule() = default;
  virtual void steps_taken(int64_t) {}   ///< after each taken step: how many were taken in all
  virtual void epochs_ended(int64_t) {}  ///< after each epoch: how many in all
  virtual void observe(double) {}        ///< after each validation: the monitored metric
  virtual void groups_added() {}         ///< the optimizer got new groups
  /// The metric that `observe` wants; empty if none.
  [[nodiscard]] virtual std::string monitor() const { return {}; }
};

namespace detail {

/// The learning rates that the groups of an optimizer began with.
class BaseRates {
 public:
  explicit BaseRates(torch::optim::Optimizer& optimizer) : optimizer_(&optimizer) {
    for (const auto& group : optimizer.param_groups()) rates_.push_back(group.options().get_lr());
  }

  /// @throws Error(user_code) for a factor that would make every weight NaN
  void scale(double factor) {
    if (!std::isfinite(factor))
      throw Error(ExitCode::user_code, "a schedule's factor is " + std::to_string(factor) + ": it must be finite.");
    factor_ = factor;
    for (std::size_t g = 0; g < rates_.size(); ++g) optimizer_->param_groups()[g].options().set_lr(rates_[g] * factor);
  }

  /// Groups that were added begin with the learning rate of their options, times the factor of now.
  void take_in_groups() {
    for (std::size_t g = rates_.size(); g < optimizer_->param_groups().size(); ++g)
      rates_.push_back(std::as_const(*optimizer_).param_groups()[g].options().get_lr());
    scale(factor_);
  }

 private:
  torch::optim::Optimizer* optimizer_;
  std::vector<double> rates_;
  double factor_ = 1;
};

template <FactorSchedule Schedule>
class BoundFactor final : public BoundSchedule {
 public:
  BoundFactor(torch::optim::Optimizer& optimizer, Schedule schedule, Interval interval)
      : rates_(optimizer), schedule_(std::move(schedule)), interval_(interval) {
    rates_.scale(schedule_.factor(0));
  }
  void steps_taken(int64_t steps) override {
    if (interval_ == Interval::step) rates_.scale(schedule_.factor(steps));
  }
  void epochs_ended(int64_t epochs) override {
    if (interval_ == Interval::epoch) rates_.scale(schedule_.factor(epochs));
  }
  void groups_added() override { rates_.take_in_groups(); }

 private:
  BaseRates rates_;
  Schedule schedule_;
  Interval interval_;
};

class BoundPlateau final : public BoundSchedule {
 public:
  BoundPlateau(torch::optim::Optimizer& optimizer, const Plateau& rule)
      : rates_(optimizer), state_(rule), monitor_(rule.monitor) {}
  void observe(double metric) override { rates_.scale(state_.observe(metric)); }
  void groups_added() override { rates_.take_in_groups(); }
  [[nodiscard]] std::string monitor() const override { return monitor_; }

 private:
  BaseRates rates_;
  PlateauState state_;
  std::string monitor_;
};

/// One of LibTorch's schedulers, which counts by itself (in 2.15 StepLR's first step does nothing but count). It may
/// come by value or by pointer.
template <class Made>
class BoundLibTorch final : public BoundSchedule {
 public:
  template <class Factory>
  BoundLibTorch(torch::optim::Optimizer& optimizer, Factory& factory, ScheduledOptions options)
      : scheduler_(factory(optimizer)), options_(std::move(options)) {
    if (takes_metric && options_.monitor.empty())
      throw Error(ExitCode::user_code,
                  "a scheduler whose step takes a metric needs scheduled(..., {.monitor = \"the metric's name\"}).");
  }
  void steps_taken(int64_t) override {
    if constexpr (!takes_metric)
      if (options_.interval == Interval::step) target().step();
  }
  void epochs_ended(int64_t) override {
    if constexpr (!takes_metric)
      if (options_.interval == Interval::epoch) target().step();
  }
  void observe(double metric) override {
    if constexpr (takes_metric) target().step(float(metric));
  }
  void groups_added() override {
    if constexpr (takes_metric)
      throw Error(ExitCode::user_code,
                  "LibTorch's ReduceLROnPlateauScheduler cannot take in a group that is added: use dt::Plateau.");
  }
  [[nodiscard]] std::string monitor() const override { return takes_metric ? options_.monitor : std::string(); }

 private:
  static constexpr bool by_pointer = requires(Made & made) { *made; };
  static constexpr decltype(auto) target_of(Made& made) {
    if constexpr (by_pointer)
      return *made;
    else
      return (made);
  }
  decltype(auto) target() { return target_of(scheduler_); }
  static constexpr bool takes_metric = !requires(Made & made) { target_of(made).step(); };

  Made scheduler_;
  ScheduledOptions options_;
};

template <class Schedule>
std::unique_ptr<BoundSchedule> bind_schedule(torch::optim::Optimizer& optimizer, Schedule schedule,
                                             ScheduledOptions options) {
  if constexpr (std::same_as<Schedule, Plateau>) {
    return std::make_unique<BoundPlateau>(optimizer, schedule);
  } else if constexpr (FactorSchedule<Schedule>) {
    return std::make_unique<BoundFactor<Schedule>>(optimizer, std::move(schedule), options.interval);
  } else {
    using Made = std::invoke_result_t<Schedule&, torch::optim::Optimizer&>;
    return std::make_unique<BoundLibTorch<Made>>(optimizer, schedule, std::move(options));
  }
}

}  // namespace detail
}  // namespace dovetail
