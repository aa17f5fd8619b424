// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/hana/for_each.hpp>
#include <dovetail/core/hook_report.hpp>
#include <dovetail/core/report.hpp>
#include <dovetail/core/setup_graph.hpp>
#include <dovetail/registry.hpp>
#include <memory>
#include <utility>

/// A trainer without tensors, for cases that are to compile in a second: it holds the reports where Trainer holds them.

namespace dovetail {

struct Tensor {};
struct Parameters {};
struct Batch {};
struct StepContext {
  StepContext() = default;
  StepContext(const StepContext&) = delete;
};

struct TrainerOptions {
  int max_epochs = 1;
};

template <class Strategy, class Precision>
class Trainer {
 public:
  explicit Trainer(TrainerOptions options = {}, Strategy strategy = {}, Precision precision = {})
      : options_(options), strategy_(std::move(strategy)), precision_(std::move(precision)) {
    [[maybe_unused]] detail::PairReport<Strategy, Precision> report;
  }

  template <class Task, class... Given>
  void fit(Task&& task, Given&&...) {
    using Types = detail::FitTypes<Parameters, Batch, StepContext, Tensor>;
    using TaskType = std::remove_cvref_t<Task>;
    if constexpr (compatible<Strategy, Precision>) {
      [[maybe_unused]] detail::TaskReport<TaskType, Types> report;
      (report_callback<std::remove_cvref_t<Given>>(), ...);
      if constexpr (detail::fits_task<TaskType, Types>) {
        report_optimizers<decltype(task.configure_optimizers(Parameters{}))>();
        boost::hana::for_each(setup_plan<Strategy, Precision>, [](auto) {});
      }
    }
  }

 private:
  template <class T>
  void report_callback() {
    [[maybe_unused]] detail::CallbackReport<T> report;
  }
  template <class Returned>
  void report_optimizers() {
    [[maybe_unused]] detail::OptimizerReport<Strategy, Precision, Returned> report;
  }
  template <class Returned>
  requires requires { typename Returned::first_type; }
  void report_optimizers() {
    [[maybe_unused]] detail::OptimizerReport<Strategy, Precision, typename Returned::first_type,
                                             typename Returned::second_type>
        report;
  }

  TrainerOptions options_;
  Strategy strategy_;
  Precision precision_;
};

/// Optimizers, as far as rules know them.
struct SomeAdamW {};
struct SomeLBFGS {};
struct SomeMuon {};
template <>
inline constexpr OptimizerTraits optimizer_traits<SomeAdamW>{.elementwise = true};
template <>
inline constexpr OptimizerTraits optimizer_traits<SomeLBFGS>{.requires_closure = true};

struct Net {};

/// A Task that fit takes, with an optimizer to choose.
template <class Optimizer = SomeAdamW>
struct SomeTask {
  auto configure_model() const { return std::make_shared<Net>(); }
  auto configure_optimizers(const Parameters&) const { return Optimizer{}; }
  Tensor training_step(Net&, const Batch&, StepContext&) const { return {}; }
};

}  // namespace dovetail

namespace dt = dovetail;
