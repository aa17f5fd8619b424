// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/loop/check_options.hpp>
#include <dovetail/loop/fit_loop.hpp>
#include <dovetail/loop/set_up.hpp>
#include <dovetail/run/masters_follow.hpp>

#include <memory>
#include <string>

namespace dovetail {

/// What a fit gives back.
template <class Model>
struct FitResult {
  std::shared_ptr<Model> model;       ///< trained, whole on every rank, whatever the strategy cut
  int64_t steps = 0;                  ///< optimizer steps taken
  int64_t epochs = 0;                 ///< epochs begun
  double loss = 0;                    ///< of the last step, mean over all ranks
  MetricsRow validation;              ///< of the last validation
  std::string stop_reason;            ///< why it ended early; empty: it did not
  CommunicationCounts communication;  ///< calls and bytes sent by this rank
};

namespace detail {

/// A pair of policies as values.
struct PolicyFacts {
  StrategyTraits strategy;
  PrecisionTraits precision;
  std::string_view strategy_name, precision_name;
  ResolvedOptions options{};  ///< of both
};

/// What the optimizers' types say, before there are any.
struct OptimizerFacts {
  int64_t count = 0;
  bool elementwise = true;  ///< all of them; the others: some
  bool requires_closure = false, unscales_itself = false;

  template <class... Optimizers>
  static constexpr OptimizerFacts of() {
    return {.count = sizeof...(Optimizers),
            .elementwise = (optimizer_traits<Optimizers>.elementwise && ...),
            .requires_closure = (optimizer_traits<Optimizers>.requires_closure || ...),
            .unscales_itself = (optimizer_traits<Optimizers>.unscales_itself || ...)};
  }
};

/// One fit, as far as it does not depend on the policies' types.
class Fit {
 public:
  Fit(const TrainerOptions& options, const PolicyFacts& policies, OptimizerFacts optimizers, StrategyHooks& strategy,
      PrecisionHooks& precision, TaskCalls& task, Observers& observers)
      : run_(options, policies.strategy, policies.precision, policies.strategy_name, policies.precision_name),
        set_up_(run_, strategy, precision, task),
        loop_(run_, strategy, precision, task, observers),
        optimizers_(optimizers),
        strategy_(strategy),
        task_(task),
        observers_(observers) {
    check_options(options);
    run_.policy_options = policies.options;
    StartRequest request{.optimizer_unscales_itself = optimizers.unscales_itself};
    if (options.gradient_clip)
      request.clip = options.gradient_clip->kind == ClipOptions::Kind::norm ? ClipKind::norm : ClipKind::value;
    if (const Verdict verdict = start_verdict(policies.strategy, policies.precision, request); !verdict)
      throw Error(ExitCode::arguments, std::string(verdict.text));
  }

  /// Adds to the plan in words, and prints it.
  void show_plan(const std::string& text) {
    loop_.state.plan += text;
    if (run_.options.progress && current_ranks().rank == 0) std::fputs(text.c_str(), stdout);
  }

  void stage(Stage stage) {
    set_up_.stage(stage);
    if (stage == Stage::place_model) show_traffic();
  }

  void run(DataHooks& data) {
    set_up_.finish();
    const int rank = run_.rank(), ranks = run_.world_size();
    const auto training = data.training(rank, ranks,
                                        {.batch_size = run_.options.batch_size,
                                         .seed = run_.options.seed,
                                         .shuffle = run_.options.shuffle,
                                         .drop_last = run_.options.drop_last});
    std::unique_ptr<BatchSource> validation;
    if (task_.has_validation())
      validation = data.validation(rank, ranks, {.batch_size = run_.options.batch_size, .shuffle = false});
    loop_.fit(*training, validation.get());
  }

  MetricsRow validate(DataHooks& data) {
    if (!task_.has_validation()) throw Error(ExitCode::user_code, "validate was given a Task without validation_step.");
    for (Stage stage : {Stage::environment, Stage::build_model, Stage::convert_model, Stage::place_model})
      set_up_.stage(stage);
    const auto source =
        data.evaluation(run_.rank(), run_.world_size(), {.batch_size = run_.options.batch_size, .shuffle = false});
    if (!source) throw Error(ExitCode::data, "validate was given a data module without validation_data.");
    loop_.validate(*source, limited(source->batches(), run_.options.limit_validation_batches));
    return loop_.state.validation;
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

  template <class Model>
  FitResult<Model> result(const std::shared_ptr<Model>& model) const {
    const LoopState& state = loop_.state;
    return {model, run_.steps_taken, run_.epoch, state.loss, state.validation, state.stop_reason(), run_.comm.counts()};
  }

 private:
  void show_traffic() {
    if (run_.world_size() == 1) return;
    const auto traffic = strategy_.traffic({.model = *run_.module,
                                            .precision = run_.precision,
                                            .ranks = run_.world_size(),
                                            .micro_batches = run_.options.accumulate,
                                            .passes = 1 + int64_t(run_.further_scalers.size()),
                                            .scale_per_backward = run_.scaler && run_.scale_per_backward,
                                            .norms = run_.needs_norms() ? optimizers_.count : 0,
                                            .cut = optimizers_.elementwise ? Cut::inside_tensors : Cut::at_borders,
                                            .deterministic = run_.options.deterministic});
    if (traffic) show_plan(traffic->text(optimizers_.requires_closure ? "evaluation of the loss" : "step"));
  }

  RunContext run_;
  MastersFollow masters_follow_{run_};
  SetUp set_up_;
  FitLoop loop_;
  OptimizerFacts optimizers_;
  StrategyHooks& strategy_;
  TaskCalls& task_;
  Observers& observers_;
};

}  // namespace detail

}  // namespace dovetail
