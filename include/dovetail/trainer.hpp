// SPDX-License-Identifier: Apache-2.0
#pragma once

// The reports come first: compilers print the chain of includes above them.
#include <dovetail/core/report.hpp>
#include <dovetail/core/hook_report.hpp>
#include <dovetail/core/describe.hpp>

#include <boost/hana/for_each.hpp>

#include <dovetail/default_observers.hpp>
#include <dovetail/loop/fit.hpp>
#include <dovetail/loop/fit_reports.hpp>

namespace dovetail {

namespace detail {

/// Types of arguments of a Task's functions, which the torch-free reports cannot name.
using TorchTypes = FitTypes<Parameters, Batch, StepContext, torch::Tensor>;

template <class Task>
using OptimizersOf = decltype(std::declval<Task&>().configure_optimizers(std::declval<const Parameters&>()));

}  // namespace detail

/// A training run as a type: how work is spread over ranks, and in which number formats it is done.
///
/// The pair decides the order of set-up at compile time; a pair that has none does not compile, with one error that
/// says why and what to use instead. docs/rules.md lists the rules.
template <class Strategy, class Precision>
class Trainer {
 public:
  explicit Trainer(TrainerOptions options = {}, Strategy strategy = {}, Precision precision = {})
      : options_(std::move(options)), strategy_(std::move(strategy)), precision_(std::move(precision)) {
    [[maybe_unused]] detail::PairReport<Strategy, Precision> report;
  }

  /// Trains: sets up in the order of the plan, then runs epochs of training and validation.
  ///
  /// @param task       what is trained: configure_model, configure_optimizers, training_step, and what else it has
  /// @param data       a data module, or one data set
  /// @param observers  callbacks and loggers, called in this order
  /// @throws Error with the exit code that fits
  template <class Task, class Data, class... Given>
  auto fit(Task&& task, Data&& data, Given&&... observers) {
    using TaskType = std::remove_reference_t<Task>;
    if constexpr (!detail::fits_task<TaskType, detail::TorchTypes>) {
      if constexpr (compatible<Strategy, Precision>) [[maybe_unused]]
        detail::TaskReport<TaskType, detail::TorchTypes> report;
    } else if constexpr (!compatible<Strategy, Precision>) {  // the constructor has its error
      return FitResult<detail::ModelOf<TaskType>>{};
    } else if constexpr (!(detail::fits_callback<std::remove_cvref_t<Given>> && ...)) {
      (report_callback<std::remove_cvref_t<Given>>(), ...);
      return FitResult<detail::ModelOf<TaskType>>{};
    } else if constexpr (!FitData<std::remove_cvref_t<Data>>) {
      [[maybe_unused]] detail::NoData<std::remove_cvref_t<Data>> report;
      return FitResult<detail::ModelOf<TaskType>>{};
    } else if constexpr (!OptimizerResult<detail::OptimizersOf<TaskType>>) {
      [[maybe_unused]] detail::NoOptimizerResult<detail::OptimizersOf<TaskType>> report;
      return FitResult<detail::ModelOf<TaskType>>{};
    } else {
      return check_optimizers(task, data, optimizer_types_of<detail::OptimizersOf<TaskType>>{},
                              std::forward<Given>(observers)...);
    }
  }

  /// One pass over validation data with a model that exists, on every rank its part: the means of what validation_step
  /// logs, the same on every rank. No optimizer is made. The model is cast in place if the precision keeps weights in
  /// another format.
  ///
  /// @param data  a data module with validation_data, or one data set
  template <class Task, class Model, class Data>
  MetricsRow validate(Task&& task, const std::shared_ptr<Model>& model, Data&& data) {
    if constexpr (!FitData<std::remove_cvref_t<Data>>) {
      [[maybe_unused]] detail::NoData<std::remove_cvref_t<Data>> report;
      return {};
    } else if constexpr (compatible<Strategy, Precision>) {
      TaskAdapter<std::remove_reference_t<Task>> task_calls(task, model);
      DataAdapter<std::remove_reference_t<Data>> data_hooks(data);
      StrategyAdapter<StrategyBase> whole_model{StrategyBase{}};
      PrecisionAdapter<Precision> precision(precision_);
      Observers nobody;
      detail::Fit fit(options_, facts(), {}, whole_model, precision, task_calls, nobody);
      return fit.validate(data_hooks);
    } else {
      return {};
    }
  }

  const TrainerOptions& options() const { return options_; }

 private:
  template <class Callback>
  static void report_callback() {
    [[maybe_unused]] detail::CallbackReport<Callback> report;
  }

  /// The continuation that knows the optimizers' types.
  template <class Task, class Data, class... Optimizers, class... Given>
  auto check_optimizers(Task& task, Data& data, OptimizerTypes<Optimizers...>, Given&&... observers) {
    if constexpr (!accepts<Strategy, Precision, Optimizers...>) {
      [[maybe_unused]] detail::OptimizerReport<Strategy, Precision, Optimizers...> report;
      return FitResult<detail::ModelOf<Task>>{};
    } else {
      TaskAdapter<Task> task_calls(task);
      DataAdapter<Data> data_hooks(data);
      Observers list = detail::observers_of(options_, current_ranks().rank, task, std::forward<Given>(observers)...);
      return run(task_calls, data_hooks, list, detail::OptimizerFacts::of<Optimizers...>());
    }
  }

  template <class Task>
  auto run(TaskAdapter<Task>& task, DataHooks& data, Observers& observers, detail::OptimizerFacts optimizers) {
    StrategyAdapter<Strategy> strategy(strategy_);
    PrecisionAdapter<Precision> precision(precision_);
    detail::Fit fit(options_, facts(), optimizers, strategy, precision, task, observers);
    fit.guarded([&] {
      const int ranks = current_ranks().world_size;
      fit.show_plan(describe<Strategy, Precision>(
          {options_.batch_size, options_.accumulate, ranks, shard_group_size(strategy_, ranks)}));
      boost::hana::for_each(setup_plan<Strategy, Precision>, [&](auto stage) { fit.stage(stage); });
      fit.run(data);
    });
    return fit.result(task.model());
  }

  detail::PolicyFacts facts() const {
    ResolvedOptions options = options_of_policy(strategy_);
    for (auto& option : options_of_policy(precision_)) options.push_back(std::move(option));
    return {Strategy::traits, Precision::traits, Strategy::name, Precision::name, std::move(options)};
  }

  TrainerOptions options_;
  Strategy strategy_;
  Precision precision_;
};

}  // namespace dovetail
