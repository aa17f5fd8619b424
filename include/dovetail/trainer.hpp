// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/hana/for_each.hpp>

#include <dovetail/core/report.hpp>
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

/// One fit, as far as it does not depend on the policies' types.
class Fit {
 public:
  Fit(const TrainerOptions& options, const StrategyTraits& strategy_traits, const PrecisionTraits& precision_traits,
      StrategyHooks& strategy, PrecisionHooks& precision, TaskHooks& task, Observers& observers)
      : run_(options, strategy_traits, precision_traits),
        set_up_(run_, strategy, precision, task),
        loop_(run_, strategy, precision, task, observers),
        observers_(observers) {
    check_options(options);
    StartRequest request;
    if (options.gradient_clip)
      request.clip = options.gradient_clip->kind == ClipOptions::Kind::norm ? ClipKind::norm : ClipKind::value;
    if (const Verdict verdict = start_verdict(strategy_traits, precision_traits, request); !verdict)
      throw Error(ExitCode::arguments, std::string(verdict.text));
  }

  void stage(Stage stage) { set_up_.stage(stage); }

  void run(DataHooks& data) {
    set_up_.finish();
    const int rank = run_.rank(), ranks = run_.world_size();
    const auto training = data.training(rank, ranks, {run_.options.batch_size, run_.options.seed, run_.options.shuffle});
    const auto validation = data.validation(rank, ranks, {run_.options.batch_size, run_.options.seed, false});
    loop_.fit(*training, validation.get());
  }

  RunContext& context() { return run_; }
  LoopState& state() { return loop_.state; }

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
    if constexpr (compatible<Strategy, Precision>) {
      using TaskType = std::remove_cvref_t<Task>;
      check_optimizers(optimizer_types_of<decltype(task.configure_optimizers(std::declval<const Parameters&>()))>{});
      TaskAdapter<std::remove_reference_t<Task>> task_adapter(task);
      DataAdapter<std::remove_reference_t<Data>> data_adapter(data);
      Observers list = make_observers(options_, std::forward<Given>(observers)...);
      StrategyAdapter<Strategy> strategy(strategy_);
      PrecisionAdapter<Precision> precision(precision_);
      detail::Fit fit(options_, Strategy::traits, Precision::traits, strategy, precision, task_adapter, list);
      boost::hana::for_each(setup_plan<Strategy, Precision>, [&](auto stage) { fit.stage(stage); });
      fit.run(data_adapter);
      return FitResult<detail::ModelOf<TaskType>>{task_adapter.model(), fit.context().steps_taken, fit.context().epoch, fit.state().loss,
                                                  fit.state().validation, fit.state().stop_reason(), fit.context().comm.counts()};
    }
  }

  const TrainerOptions& options() const { return options_; }

 private:
  template <class... Optimizers>
  static void check_optimizers(OptimizerTypes<Optimizers...>) {
    [[maybe_unused]] detail::OptimizerReport<Strategy, Precision, Optimizers...> report;
  }

  TrainerOptions options_;
  Strategy strategy_;
  Precision precision_;
};

}  // namespace dovetail
