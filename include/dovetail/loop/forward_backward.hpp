// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/loop/check_loss.hpp>
#include <dovetail/loop/evaluation_mode.hpp>
#include <dovetail/loop/loss_scales.hpp>
#include <dovetail/loop/missing_gradients.hpp>
#include <dovetail/loop/policy_hooks.hpp>
#include <dovetail/loop/task_adapter.hpp>
#include <dovetail/precision/convert.hpp>

#include <cmath>
#include <optional>

namespace dovetail {

/// Forward and backward of one micro-batch: gradients are added to the main ones, what is seen to the step's facts.
class ForwardBackward {
 public:
  ForwardBackward(RunContext& run, StrategyHooks& strategy, PrecisionHooks& precision, TaskCalls& task,
                  LossScales& scales, StepFacts& facts)
      : run_(run),
        strategy_(strategy),
        precision_(precision),
        task_(task),
        scales_(scales),
        facts_(facts),
        step_(sums_, true) {}

  /// To be called when set-up is over.
  void prepare() { untouched_.prepare(run_); }

  /// What the Task has logged.
  MetricSums& sums() { return sums_; }

  void operator()(const Batch& batch) {
    const int64_t samples = batch.samples();
    strategy_.before_forward(run_);
    precision_.before_forward(run_);
    step_.begin(run_.epoch, run_.steps_taken, samples);
    Forward forward(*this, batch);
    {
      // A batch that only keeps its rank busy must leave no trace: in training mode batch norms would take the padding
      // into their running statistics, and refuse to normalise a single row.
      std::optional<EvaluationMode> resting;
      if (samples == 0) resting.emplace(*run_.module, is_batch_norm);
      untouched_.before_training_step(run_);
      run_.in_training_step = true;
      precision_.forward(run_, forward);
      run_.in_training_step = false;
      untouched_.after_training_step(run_);
    }
    const double weight = step_.weight();
    for (const torch::Tensor& loss : forward.losses) check_loss(run_, loss, weight);
    if (samples > 0) note_losses(forward.losses, weight);
    backward(forward.losses, (samples > 0 ? weight : 0.0) / double(run_.options.batch_size));
  }

 private:
  struct Forward final : GuardedCall {
    Forward(ForwardBackward& self, const Batch& batch) : self(self), batch(batch) {}
    void operator()() override { losses = self.task_.training_step(batch, self.step_); }
    ForwardBackward& self;
    const Batch& batch;
    Losses losses;
  };

  /// One backward pass, of the sum of all losses; or one for each, where they have a scaler each.
  void backward(Losses& losses, double factor) {
    const int passes = scales_.losses();
    if (passes == 1)
      for (std::size_t i = 1; i < losses.size(); ++i)
        losses[0] = losses[0].to(main_dtype_of(losses[0].scalar_type())) + losses[i];
    const int64_t micro_batch = run_.micro_batch, window = run_.window;
    for (int pass = 0; pass < passes; ++pass) {
      torch::Tensor loss = std::move(losses[std::size_t(pass)]);
      run_.micro_batch = micro_batch * passes + pass;
      run_.window = window * passes;
      const double scaled = factor * scales_.begin_pass(pass);
      // In fp32 at least: a scaled loss of a half format would overflow.
      if (scaled != 1.0) loss = loss.to(main_dtype_of(loss.scalar_type())) * scaled;
      run_.gradients.note_frozen();
      strategy_.before_backward(run_);
      precision_.before_backward(run_);
      loss.backward({}, /*retain_graph=*/pass + 1 < passes);
      precision_.after_backward(run_);
      strategy_.after_backward(run_);
      scales_.end_pass(pass);
    }
    run_.micro_batch = micro_batch;
    run_.window = window;
  }

  void note_losses(const Losses& losses, double weight) {
    facts_.samples += weight;
    for (std::size_t i = 0; i < losses.size(); ++i) {
      const double loss = detail::read_scalar(losses[i].detach());
      facts_.loss += loss * weight;
      if (std::isnan(loss)) facts_.nan_rank = run_.rank();
      if (!std::isinf(loss)) continue;
      facts_.infinite_rank = run_.rank();
      scales_.note_infinite(int(i));
    }
  }

  RunContext& run_;
  StrategyHooks& strategy_;
  PrecisionHooks& precision_;
  TaskCalls& task_;
  LossScales& scales_;
  StepFacts& facts_;
  UntouchedGradients untouched_;
  MetricSums sums_;
  StepContext step_;
};

}  // namespace dovetail
