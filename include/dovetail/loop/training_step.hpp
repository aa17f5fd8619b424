// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/loop/agreement.hpp>
#include <dovetail/loop/check_epsilon.hpp>
#include <dovetail/loop/check_loss.hpp>
#include <dovetail/loop/clip_gradients.hpp>
#include <dovetail/loop/forward_backward.hpp>
#include <dovetail/loop/missing_gradients.hpp>
#include <dovetail/run/added_groups.hpp>

#include <cmath>

namespace dovetail {

/// One optimizer step of any pair: micro-batches are accumulated, then the window is finished in the one order
///
///   reduce -> one small collective -> clip -> optimizer -> masters to model -> scale -> schedule -> zero gradients.
///
/// The collective is under way with the last reductions where it tells nothing of their sums.
/// A step with non-finite gradients (or an infinite loss, under a scaler) is skipped: it changes nothing but the scale.
/// A loss that is NaN, or infinite without a scaler, stops the run on every rank.
class TrainingStep {
 public:
  TrainingStep(RunContext& run, StrategyHooks& strategy, PrecisionHooks& precision, TaskCalls& task, LoopState& state)
      : run_(run),
        strategy_(strategy),
        precision_(precision),
        state_(state),
        scales_(run),
        forward_backward_(run, strategy, precision, task, scales_, facts_) {}

  MetricSums& sums() { return forward_backward_.sums(); }

  /// Set-up is over: what does the step need to know of gradients?
  void prepare() {
    needs_norm_ = run_.needs_norms();
    if (needs_norm_) facts_.squared_norms.assign(run_.optimizers.size(), 0.0);
    for (const OptimizerEntry& optimizer : run_.optimizers) takes_closure_ |= optimizer.traits().requires_closure;
    added_groups_.begin(run_);
    scales_.prepare();
    forward_backward_.prepare();
  }

  /// One micro-batch of the window. At the window's end the step follows, unless some rank has asked to stop.
  void micro_batch(const Batch& batch) {
    if (run_.micro_batch == 0 && added_groups_.take_in(run_)) check_epsilon(run_.optimizers);
    if (takes_closure_)
      kept_.push_back({batch.data.clone(), batch.target.clone(), batch.padding});
    else
      forward_backward_(batch);
    if (!run_.at_boundary()) return;
    takes_closure_ ? step_with_closure() : finish_window();
  }

 private:
  /// Everything from the last backward to the decision: after it every rank knows the same facts.
  void reduce_and_agree() {
    facts_.missing = double(run_.gradients.count_missing());
    if (!needs_norm_) start_agreement();  // it is under way with the last sums
    strategy_.reduce(run_);
    precision_.reduce(run_);
    run_.gradients.nothing_arrives();
    if (needs_norm_) start_agreement();
    agreement_.finish(run_, facts_);
    if (facts_.stop_rank >= 0 && !takes_closure_) return;  // the window is dropped; evaluations that began go on
    stop_on_bad_loss(run_, facts_);
    if (!(facts_.samples > 0)) refuse_step(run_, "the weights of all batches are 0", "something in them must count.");
    if (facts_.other_frozen) refuse_other_frozen(run_);
    missing_.hide(run_, agreement_, facts_.missing > 0);
    state_.loss = facts_.loss / facts_.samples;
  }

  void start_agreement() {
    for (std::size_t k = 0; k < facts_.squared_norms.size(); ++k)
      facts_.squared_norms[k] = run_.gradients.squared_norm(k);
    facts_.stop_rank = state_.stopping() ? run_.rank() : -1;
    facts_.groups = added_groups_.fingerprint();
    scales_.add_to(facts_);
    agreement_.start(run_, facts_);
  }

  /// What main gradients have to be divided by, clipping apart.
  double divisor() const {
    return scales_.held() * agreement_.samples_in_gradients(run_, facts_) / double(run_.options.batch_size);
  }

  bool overflowed(std::size_t optimizer) const {
    return needs_norm_ && !std::isfinite(facts_.squared_norms[optimizer]);
  }

  void finish_window() {
    torch::NoGradGuard no_grad;
    reduce_and_agree();
    if (facts_.stop_rank >= 0) return drop_window(facts_.stop_rank);
    strategy_.before_step(run_);
    precision_.before_step(run_);
    const double rest = clip_and_cast(run_, facts_, divisor(), state_);
    bool any_taken = false, any_overflow = facts_.infinite_rank >= 0;
    for (std::size_t k = 0; k < run_.optimizers.size(); ++k) {
      const bool skip = overflowed(k) || facts_.infinite_rank >= 0;
      any_overflow |= skip;
      if (skip) continue;
      run_.optimizers[k].step(rest);
      any_taken = true;
    }
    missing_.show(run_);
    finish_step(any_taken, any_overflow);
  }

  /// Some rank asked to stop after the last step: this one is not taken.
  void drop_window(int stop_rank) {
    state_.agree_to_stop(stop_rank);
    run_.gradients.zero();
    kept_.clear();
    scales_.start_window();
    start_facts();
  }

  /// Optimizers that evaluate the loss by themselves: each evaluation goes over the window's batches anew.
  void step_with_closure() {
    int64_t evaluations = 0;
    const auto evaluate = [this, &evaluations] {
      ++evaluations;
      torch::AutoGradMode grad(true);
      missing_.show(run_);
      run_.gradients.zero();
      start_facts();
      const int64_t last = run_.micro_batch;
      for (std::size_t i = 0; i < kept_.size(); ++i) {
        run_.micro_batch = int64_t(i);
        forward_backward_(kept_[i]);
      }
      run_.micro_batch = last;
      torch::NoGradGuard no_grad;
      reduce_and_agree();
      for (std::size_t k = 0; k < run_.optimizers.size(); ++k)
        if (overflowed(k))
          throw Error(ExitCode::numeric, "gradients are not finite at step " + std::to_string(run_.steps_taken) +
                                             " in an evaluation by " + run_.optimizers[k].type() +
                                             ", which cannot skip it: lower its learning rate or use a line search.");
      const double rest = clip_and_cast(run_, facts_, divisor(), state_);
      if (rest != 1.0) run_.gradients.for_each_flat([&](torch::Tensor& flat) { flat.div_(rest); });
      return torch::full({}, state_.loss, torch::kFloat64);
    };
    if (const int rank = Agreement::stop_rank(run_, state_.stopping()); rank >= 0) return drop_window(rank);
    torch::NoGradGuard no_grad;
    strategy_.before_step(run_);
    precision_.before_step(run_);
    for (std::size_t k = 0; k < run_.optimizers.size(); ++k) {
      const int64_t before = evaluations;
      run_.optimizers[k].step_with(evaluate);
      if (evaluations == before)
        throw Error(ExitCode::user_code, run_.optimizers[k].type() + " did not evaluate the loss at step " +
                                             std::to_string(run_.steps_taken) +
                                             ": its step must call the closure that it is given.");
    }
    missing_.show(run_);
    kept_.clear();
    finish_step(true, false);
  }

  void finish_step(bool taken, bool overflow) {
    if (taken) {
      ++run_.steps_taken;
      precision_.after_step(run_);
      strategy_.after_step(run_);
      run_.optimizers.advance_schedules();
    }
    scales_.update(facts_, overflow);
    run_.gradients.zero();
    ++run_.steps_attempted;
    state_.step_skipped = overflow;
    state_.samples += int64_t(facts_.samples);
    start_facts();
  }

  void start_facts() {
    facts_.samples = facts_.loss = facts_.missing = 0;
    facts_.nan_rank = facts_.infinite_rank = facts_.stop_rank = -1;
  }

  RunContext& run_;
  StrategyHooks& strategy_;
  PrecisionHooks& precision_;
  LoopState& state_;
  StepFacts facts_;
  Agreement agreement_;
  LossScales scales_;
  ForwardBackward forward_backward_;
  MissingGradients missing_;
  AddedGroups added_groups_;
  std::vector<Batch> kept_;  // of the window, where an optimizer evaluates the loss by itself
  bool needs_norm_ = false, takes_closure_ = false;
};

}  // namespace dovetail
