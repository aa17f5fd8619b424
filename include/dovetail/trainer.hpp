// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/hana/for_each.hpp>

#include <dovetail/core/describe.hpp>
#include <dovetail/core/hook_report.hpp>
#include <dovetail/core/report.hpp>
#include <dovetail/default_observers.hpp>
#include <dovetail/loop/check_options.hpp>
#include <dovetail/loop/fit_loop.hpp>
#include <dovetail/loop/set_up.hpp>

#include <memory>
#include <string>

namespace dovetail {

/// What a fit gives back.
template <class Model>
struct FitResult {
  std::shared_ptr<Model> model;  ///< trained, whole on every rank, whatever the strategy cut
  int64_t steps = 0;             ///< optimizer steps taken
  int64_t epochs = 0;            ///< epochs begun
  double loss = 0;               ///< of the last step, mean over all ranks
  MetricsRow validation;         ///< of the last validation
  std::string stop_reason;       ///< why it ended early; empty: it did not
  CommunicationCounts communication;  ///< calls and bytes sent by this rank
};

namespace detail {

/// Types of arguments of a Task's functions, which the torch-free reports cannot name.
using TorchTypes = FitTypes<Parameters, Batch, StepContext, torch::Tensor>;

template <class Task>
using OptimizersOf = decltype(std::declval<Task&>().configure_optimizers(std::declval<const Parameters&>()));

/// A pair of policies as values.
struct PolicyFacts {
  StrategyTraits strategy;
  PrecisionTraits precision;
  std::string_view strategy_name, precision_name;
  bool optimizer_unscales_itself = false;
};

/// One fit, as far as it does not depend on the policies' types.
class Fit {
 public:
  Fit(const TrainerOptions& options, const PolicyFacts& policies, StrategyHooks& strategy, PrecisionHooks& precision,
      TaskCalls& task, Observers& observers)
      : run_(options, policies.strategy, policies.precision, policies.strategy_name, policies.precision_name),
        set_up_(run_, strategy, precision, task),
        loop_(run_, strategy, precision, task, observers),
        observers_(observers) {
    check_options(options);
    StartRequest request{.optimizer_unscales_itself = policies.optimizer_unscales_itself};
    if (options.gradient_clip)
      request.clip = options.gradient_clip->kind == ClipOptions::Kind::norm ? ClipKind::norm : ClipKind::value;
    if (const Verdict verdict = start_verdict(policies.strategy, policies.precision, request); !verdict)
      throw Error(ExitCode::arguments, std::string(verdict.text));
  }

  void show_plan(std::string plan) {
    loop_.state.plan = std::move(plan);
    if (run_.options.progress && current_ranks().rank == 0) std::fputs(loop_.state.plan.c_str(), stdout);
  }

  void stage(Stage stage) { set_up_.stage(stage); }

  void run(DataHooks& data) {
    set_up_.finish();
    const int rank = run_.rank(), ranks = run_.world_size();
    const auto training = data.training(rank, ranks, {run_.options.batch_size, run_.options.seed, run_.options.shuffle});
    const auto validation = data.validation(rank, ranks, {run_.options.batch_size, run_.options.seed, false});
    loop_.fit(*training, validation.get());
  }

  /// Runs `body`; tells the observers of an exception before it goes on.
  template <class Body>
  void guarded(Body&& body) {
    try {
      body();
    } catch (...) {
      observers_.report(loop_.state, std::current_exception());
      throw;
    }
  }

  LoopState& state() { return loop_.state; }

  template <class Model>
  FitResult<Model> result(const std::shared_ptr<Model>& model) const {
    const LoopState& state = loop_.state;
    return {model, run_.steps_taken, run_.epoch, state.loss, state.validation, state.stop_reason(), run_.comm.counts()};
  }

 private:
  RunContext run_;
  SetUp set_up_;
  FitLoop loop_;
  Observers& observers_;
};

}  // namespace detail

/// A training run as a type: how work is spread over ranks, and in which number formats it is done.
///
/// The pair decides the order of set-up at compile time; a pair that has none does not compile, with one error that says
/// why and what to use instead. See DESIGN and docs for the rules.
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
    if constexpr (!compatible<Strategy, Precision>) {
      return;  // the constructor has its error
    } else if constexpr (!detail::fits_task<TaskType, detail::TorchTypes>) {
      [[maybe_unused]] detail::TaskReport<TaskType, detail::TorchTypes> report;
    } else if constexpr (!(detail::fits_callback<std::remove_cvref_t<Given>> && ...)) {
      (report_callback<std::remove_cvref_t<Given>>(), ...);
    } else {
      return check_optimizers(task, data, optimizer_types_of<detail::OptimizersOf<TaskType>>{}, std::forward<Given>(observers)...);
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
    } else {
      TaskAdapter<Task> task_calls(task);
      DataAdapter<Data> data_hooks(data);
      Observers list = detail::observers_of(options_, current_ranks().rank, task, std::forward<Given>(observers)...);
      return run(task_calls, data_hooks, list, unscales_itself<Optimizers...>);
    }
  }

  template <class... Optimizers>
  static constexpr bool unscales_itself = (optimizer_traits<Optimizers>.unscales_itself || ...);

  template <class Task>
  auto run(TaskAdapter<Task>& task, DataHooks& data, Observers& observers, bool optimizer_unscales_itself) {
    StrategyAdapter<Strategy> strategy(strategy_);
    PrecisionAdapter<Precision> precision(precision_);
    detail::Fit fit(options_, {Strategy::traits, Precision::traits, Strategy::name, Precision::name, optimizer_unscales_itself},
                    strategy, precision, task, observers);
    fit.guarded([&] {
      fit.show_plan(describe<Strategy, Precision>({options_.batch_size, options_.accumulate, current_ranks().world_size}));
      boost::hana::for_each(setup_plan<Strategy, Precision>, [&](auto stage) { fit.stage(stage); });
      fit.run(data);
    });
    return fit.result(task.model());
  }

  TrainerOptions options_;
  Strategy strategy_;
  Precision precision_;
};

}  // namespace dovetail
