// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/launch/warning.hpp>
#include <dovetail/loop/batch_source.hpp>
#include <dovetail/loop/buffers.hpp>
#include <dovetail/loop/compare_ranks.hpp>
#include <dovetail/loop/evaluation_mode.hpp>
#include <dovetail/loop/observer.hpp>
#include <dovetail/loop/training_step.hpp>

#include <algorithm>
#include <unordered_set>

namespace dovetail {

/// `batches`, or `limit` if that is fewer and not negative.
inline int64_t limited(int64_t batches, int64_t limit) {
  return limit < 0 ? batches : std::min(batches, limit);
}

/// Epochs of training and validation, once set-up is done. The same code for every pair.
class FitLoop {
 public:
  FitLoop(RunContext& run, StrategyHooks& strategy, PrecisionHooks& precision, TaskCalls& task, Observers& observers)
      : state(run),
        run_(run),
        strategy_(strategy),
        precision_(precision),
        task_(task),
        observers_(observers),
        step_(run, strategy, precision, task, state),
        validation_step_(validation_sums_, false) {}

  LoopState state;

  /// @param training never null
  /// @param validation may be null
  void fit(BatchSource& training, BatchSource* validation) {
    compare_data(run_, training, validation);
    step_.prepare();
    if (!run_.module->is_training()) run_.module->train();  // else each module has the mode that its maker gave it
    state.batches_per_epoch = limited(training.batches(), run_.options.limit_train_batches);
    state.validation_batches = validation ? limited(validation->batches(), run_.options.limit_validation_batches) : 0;
    observers_.each([&](Observer& o) { o.on_fit_start(state); });
    if (observers_.size() > 0) {
      const ResolvedOptions resolved = resolved_options(run_);
      observers_.each([&](Observer& o) { o.log_options(state, resolved); });
    }
    if (validation && run_.options.sanity_validation_batches > 0) {
      state.sanity = true;
      validate(*validation, std::min(state.validation_batches, run_.options.sanity_validation_batches));
      state.sanity = false;
    }
    agree_to_stop();
    for (run_.epoch = 0; run_.epoch < run_.options.max_epochs && !done(); ++run_.epoch) {
      warn_of_untrained();
      train_epoch(training);
      const int64_t every = run_.options.validate_every;
      if (validation && every > 0 && (run_.epoch + 1) % every == 0) validate(*validation, state.validation_batches);
      run_.optimizers.epochs_ended(run_.epoch + 1);
      observers_.each([&](Observer& o) { o.on_train_epoch_end(state); });
      agree_to_stop();
    }
    synchronize_buffers(run_);
    strategy_.teardown(run_);
    precision_.teardown(run_);
    observers_.each([&](Observer& o) { o.on_fit_end(state); });
  }

  /// One pass over validation data; the means are the same on every rank.
  void validate(BatchSource& source, int64_t batches) {
    torch::NoGradGuard no_grad;
    synchronize_buffers(run_);
    {
      const EvaluationMode evaluating(*run_.module);
      observers_.each([&](Observer& o) { o.on_validation_start(state); });
      for (int64_t b = 0; b < batches; ++b) validation_batch(prepare(source.load(0, b)));
    }
    state.validation = {"validation", run_.epoch, run_.steps_taken, validation_sums_.reduce(run_.comm)};
    if (!state.sanity) {
      observers_.each([&](Observer& o) { o.log_metrics(state, state.validation); });
      run_.optimizers.validated([&](const std::string& name) { return state.validation.find(name); });
    }
    observers_.each([&](Observer& o) { o.on_validation_end(state); });
  }

 private:
  struct Validate final : GuardedCall {
    Validate(FitLoop& self, const Batch& batch) : self(self), batch(batch) {}
    void operator()() override { self.task_.validation_step(batch, self.validation_step_); }
    FitLoop& self;
    const Batch& batch;
  };

  /// Between epochs no step would tell the others.
  void agree_to_stop() {
    if (const int rank = Agreement::stop_rank(run_, state.stopping()); rank >= 0) state.agree_to_stop(rank);
  }

  /// What requires a gradient only now is not trained, and would never say so.
  void warn_of_untrained() {
    if (warned_of_untrained_ || run_.rank() != 0 || run_.epoch == 0) return;
    std::unordered_set<c10::TensorImpl*> trained;
    for (const Slot& slot : run_.gradients.slots) trained.insert(slot.model.unsafeGetTensorImpl());
    for (const auto& item : run_.module->named_parameters())
      if (item.value().requires_grad() && !trained.contains(item.value().unsafeGetTensorImpl())) {
        warned_of_untrained_ = true;
        warn("the parameter '" + item.key() +
             "' requires a gradient since training began, but is not trained: optimizers were made for what required "
             "one then. Fit again, or let it require a gradient from the beginning.");
        return;
      }
  }

  void validation_batch(const Batch& batch) {
    strategy_.before_forward(run_);
    precision_.before_forward(run_);
    validation_step_.begin(run_.epoch, run_.steps_taken, batch.samples());
    Validate call(*this, batch);
    precision_.forward(run_, call);
    strategy_.finish_forward(run_);
  }

  bool done() const {
    return state.stop_is_agreed() || (run_.options.max_steps >= 0 && run_.steps_taken >= run_.options.max_steps);
  }

  /// Moves the batch to the device, and its floating inputs to the format that the precision wants.
  Batch& prepare(Batch& batch) {
    if (!run_.device.is_cpu()) {
      batch.data = batch.data.to(run_.device);
      batch.target = batch.target.to(run_.device);
    }
    if (run_.input_dtype && batch.data.is_floating_point() && batch.data.scalar_type() != *run_.input_dtype) {
      cast_.data = batch.data.to(*run_.input_dtype);
      cast_.target = batch.target;
      if (*run_.input_dtype == torch::kFloat64 && cast_.target.is_floating_point())
        cast_.target = cast_.target.to(torch::kFloat64);
      cast_.padding = batch.padding;
      return cast_;
    }
    return batch;
  }

  void train_epoch(BatchSource& source) {
    state.batch = state.samples = 0;
    observers_.each([&](Observer& o) { o.on_train_epoch_start(state); });
    const int64_t batches = state.batches_per_epoch, accumulate = run_.options.accumulate;
    for (int64_t b = 0; b < batches && !done(); ++b) {
      run_.micro_batch = b % accumulate;
      run_.window =
          std::min(accumulate, batches - (b - run_.micro_batch));  // the last window of an epoch may be shorter
      const int64_t attempted = run_.steps_attempted;
      step_.micro_batch(prepare(source.load(run_.epoch, b)));
      state.batch = b + 1;
      if (run_.steps_attempted != attempted) after_step();  // not where the window was dropped
    }
    log_train();
  }

  void after_step() {
    if (run_.options.log_every > 0 && run_.steps_attempted % run_.options.log_every == 0) log_train();
    observers_.each_step([&](Observer& o) { o.on_train_step_end(state); });
  }

  void log_train() {
    auto values = step_.sums().reduce(run_.comm);
    if (values.empty()) return;
    state.train = {"train", run_.epoch, run_.steps_taken, std::move(values)};
    observers_.each([&](Observer& o) { o.log_metrics(state, state.train); });
  }

  RunContext& run_;
  StrategyHooks& strategy_;
  PrecisionHooks& precision_;
  TaskCalls& task_;
  Observers& observers_;
  TrainingStep step_;
  MetricSums validation_sums_;
  StepContext validation_step_;
  Batch cast_;
  bool warned_of_untrained_ = false;
};

}  // namespace dovetail
