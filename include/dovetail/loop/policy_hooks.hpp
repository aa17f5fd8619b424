// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/stage.hpp>
#include <dovetail/run/dense.hpp>
#include <dovetail/strategy/predict.hpp>

#include <optional>

namespace dovetail {

/// What the loop sees of a Strategy. One adapter per policy, not per pair, so that the loop is compiled once for all
/// pairs.
class StrategyHooks {
 public:
  virtual ~StrategyHooks() = default;
  virtual void stage(Stage stage, RunContext& run) = 0;
  /// What a step will send, from the model before anything of it is cut; nothing where the Strategy does not say.
  virtual std::optional<StepTraffic> traffic(const StepShape& step) = 0;
  virtual void attach_gradients(RunContext& run) = 0;  ///< the end of set-up: gives slots their main gradients
  virtual void before_forward(RunContext& run) = 0;
  virtual void finish_forward(RunContext& run) = 0;  ///< of an evaluation: no backward follows
  virtual void before_backward(RunContext& run) = 0;
  virtual void after_backward(RunContext& run) = 0;
  virtual void reduce(RunContext& run) = 0;
  virtual void before_step(RunContext& run) = 0;
  virtual void after_step(RunContext& run) = 0;
  virtual void teardown(RunContext& run) = 0;
};

/// Something to be done under a Precision's forward guard.
class GuardedCall {
 public:
  virtual void operator()() = 0;

 protected:
  ~GuardedCall() = default;
};

/// What the loop sees of a Precision.
class PrecisionHooks {
 public:
  virtual ~PrecisionHooks() = default;
  virtual void stage(Stage stage, RunContext& run) = 0;
  virtual void before_forward(RunContext& run) = 0;
  virtual void forward(RunContext& run, GuardedCall& call) = 0;
  virtual void before_backward(RunContext& run) = 0;
  virtual void after_backward(RunContext& run) = 0;
  virtual void reduce(RunContext& run) = 0;
  virtual void before_step(RunContext& run) = 0;
  virtual void after_step(RunContext& run) = 0;
  virtual void teardown(RunContext& run) = 0;
};

namespace detail {

/// Calls the policy's hook of the stage's name. Only a Precision has convert_model and wrap_optimizers.
template <class Policy>
void call_hook_of(Stage stage, Policy& policy, RunContext& run) {
  switch (stage) {
    case Stage::environment:
      return policy.environment(run);
    case Stage::build_model:
      return policy.build_model(run);
    case Stage::convert_model:
      if constexpr (requires { policy.convert_model(run); }) policy.convert_model(run);
      return;
    case Stage::place_model:
      return policy.place_model(run);
    case Stage::wrap_model:
      return policy.wrap_model(run);
    case Stage::make_optimizers:
      return policy.make_optimizers(run);
    case Stage::rebuild_optimizers:
      return policy.rebuild_optimizers(run);
    case Stage::wrap_optimizers:
      if constexpr (requires { policy.wrap_optimizers(run); }) policy.wrap_optimizers(run);
      return;
    case Stage::bind_schedulers:
      return policy.bind_schedulers(run);
    case Stage::restore:
      return policy.restore(run);
  }
}

}  // namespace detail

template <class Strategy>
class StrategyAdapter final : public StrategyHooks {
  using Run = typename RunOf<Strategy>::type;

 public:
  explicit StrategyAdapter(const Strategy& policy) : policy_(policy) {}

  void stage(Stage stage, RunContext& run) override { detail::call_hook_of(stage, policy_, run); }
  std::optional<StepTraffic> traffic([[maybe_unused]] const StepShape& step) override {
    if constexpr (TellsTraffic<Run>) return traffic_of(policy_, step);
    return std::nullopt;
  }
  void attach_gradients(RunContext& run) override { policy_.attach_gradients(run); }
  void before_forward(RunContext& run) override { policy_.before_forward(run); }
  void finish_forward(RunContext& run) override { policy_.finish_forward(run); }
  void before_backward(RunContext& run) override { policy_.before_backward(run); }
  void after_backward(RunContext& run) override { policy_.after_backward(run); }
  void reduce(RunContext& run) override { policy_.reduce(run); }
  void before_step(RunContext& run) override { policy_.before_step(run); }
  void after_step(RunContext& run) override { policy_.after_step(run); }
  void teardown(RunContext& run) override { policy_.teardown(run); }

 private:
  Run policy_;
};

template <class Precision>
class PrecisionAdapter final : public PrecisionHooks {
 public:
  explicit PrecisionAdapter(const Precision& policy) : policy_(policy) {}

  void stage(Stage stage, RunContext& run) override { detail::call_hook_of(stage, policy_, run); }
  void before_forward(RunContext& run) override { policy_.before_forward(run); }
  void forward(RunContext& run, GuardedCall& call) override {
    [[maybe_unused]] const auto guard = policy_.forward_guard(run);
    call();
  }
  void before_backward(RunContext& run) override { policy_.before_backward(run); }
  void after_backward(RunContext& run) override { policy_.after_backward(run); }
  void reduce(RunContext& run) override { policy_.reduce(run); }
  void before_step(RunContext& run) override { policy_.before_step(run); }
  void after_step(RunContext& run) override { policy_.after_step(run); }
  void teardown(RunContext& run) override { policy_.teardown(run); }

 private:
  typename RunOf<Precision>::type policy_;
};

}  // namespace dovetail
