// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dovetail {

/// The state of one run: ranks, communicator, module, parameters, gradients, optimizers, counters. Every hook gets it.
/// Defined where tensors are known (run/context.hpp); named here so that policies can be written without torch.
class RunContext;

/// What a step is made of, and what one sends (strategy/step_traffic.hpp).
struct StepShape;
struct StepTraffic;

using StrategyContext = RunContext;
using PrecisionContext = RunContext;

/// What a forward guard is when there is nothing to guard. The destructor keeps "unused variable" warnings away.
struct NoGuard {
  NoGuard() = default;
  NoGuard(const NoGuard&) = delete;
  NoGuard& operator=(const NoGuard&) = delete;
  ~NoGuard() {}
};

/// Base of every Strategy: each hook is there and, but for one, does nothing. A Strategy derives from it, gives `name`
/// and `traits`, and hides the hooks it needs by functions of the same name; nothing is virtual and the base calls
/// nothing. Only the loop calls hooks: first the stages of set-up, in the order that `setup_plan` says, then the
/// moments of a step in the order written here, at last teardown.
///
/// Options of a policy are an aggregate `options` of its own. Where that has `each(visit)`, which calls
/// `visit("name", value)` for each, loggers get them and ranks must have been given the same.
///
/// Example: a Strategy that averages parameters now and then, in examples/custom_strategy.cpp.
struct StrategyBase {
  // The stages of set-up. The first half of the list runs before the optimizers exist, unless the traits say otherwise.
  void environment(StrategyContext&) {}
  void build_model(StrategyContext&) {}
  void place_model(StrategyContext&) {}
  void wrap_model(StrategyContext&) {}
  void make_optimizers(StrategyContext&) {}
  void rebuild_optimizers(StrategyContext&) {}
  void bind_schedulers(StrategyContext&) {}
  void restore(StrategyContext&) {}

  // The end of set-up: gives slots their main gradients. What is there does something: whole parameters get whole
  // gradients (defined in run/dense.hpp).
  void attach_gradients(StrategyContext&);

  // The moments of a step.
  void before_forward(StrategyContext&) {}
  void finish_forward(StrategyContext&) {}  // of an evaluation: no backward follows
  void before_backward(StrategyContext&) {}
  void after_backward(StrategyContext&) {}
  void reduce(StrategyContext&) {}
  void before_step(StrategyContext&) {}
  void after_step(StrategyContext&) {}
  void teardown(StrategyContext&) {}

  // What a step sends, as a StepTraffic, for the plan that is printed and for `predict`. It is asked before the
  // model is wrapped; by `predict` of an object for which no hook was called, so it has nothing but the options and the
  // shape to go by.
  void traffic(const StepShape&) const {}
};

/// Base of every Precision: as StrategyBase, with the two stages that are a Precision's own. `forward_guard` returns
/// any object whose life spans the forward of one micro-batch (autocast, for one).
struct PrecisionBase {
  void environment(PrecisionContext&) {}
  void build_model(PrecisionContext&) {}
  void convert_model(PrecisionContext&) {}
  void place_model(PrecisionContext&) {}
  void wrap_model(PrecisionContext&) {}
  void make_optimizers(PrecisionContext&) {}
  void rebuild_optimizers(PrecisionContext&) {}
  void wrap_optimizers(PrecisionContext&) {}
  void bind_schedulers(PrecisionContext&) {}
  void restore(PrecisionContext&) {}

  void before_forward(PrecisionContext&) {}
  NoGuard forward_guard(PrecisionContext&) { return {}; }
  void before_backward(PrecisionContext&) {}
  void after_backward(PrecisionContext&) {}
  void reduce(PrecisionContext&) {}
  void before_step(PrecisionContext&) {}
  void after_step(PrecisionContext&) {}
  void teardown(PrecisionContext&) {}
};

/// The type that does a policy's work in one run; it has the same hooks and is constructed from `const Policy&`, once
/// per fit. Built-in policies specialise it in strategy/x_run.hpp and precision/x_run.hpp, which keeps torch out of the
/// halves that only decide. A user's policy is its own run: it is copied for each fit, so that it can be used twice.
template <class Policy>
struct RunOf {
  using type = Policy;
};

}  // namespace dovetail
