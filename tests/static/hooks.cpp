// SPDX-License-Identifier: Apache-2.0

// Which members of a Task, a Callback or a Logger count as hooks, and which are refused: every kind of member that the
// probe has to find, and every near miss of the tables.
#include "check.hpp"

#include <dovetail/core/hook_report.hpp>
#include <memory>
#include <string>
#include <type_traits>

using namespace dovetail;

namespace {

struct Net {};
struct Tensor {};
struct Parameters {};
struct Batch {};
struct Step {};
struct Optimizer {};
using Types = detail::FitTypes<Parameters, Batch, Step, Tensor>;
using detail::NoReport;
template <class T>
using Report = detail::TaskReport<T, Types>;

struct Plain {
  auto configure_model() const { return std::make_shared<Net>(); }
  Optimizer configure_optimizers(const Parameters&) const { return {}; }
  Tensor training_step(Net&, const Batch&, Step&) const { return {}; }
};
static_assert(Task<Plain> && detail::fits_task<Plain, Types> && !Callback<Plain> && !Logger<Plain>);

// A Task that is handed over as const needs const hooks.
struct Changes : Plain {
  Tensor training_step(Net&, const Batch&, Step&) { return {}; }
};
static_assert(detail::fits_task<const Plain, Types> && detail::fits_task<Changes, Types>);
static_assert(!detail::fits_task<const Changes, Types>);

// Other forms that fit: generic, overloaded, not const, inherited, a unique_ptr, extra members, hooks.
struct Generic {
  auto configure_model() { return std::make_unique<Net>(); }
  auto configure_optimizers(const auto&) { return Optimizer{}; }
  auto training_step(auto&, const auto&, auto&) { return Tensor{}; }
  void training_step(int);
  void validation_step(auto&&...) {}
  void on_fit_start(auto&) {}
  void on_validation_end(const LoopState&) {}
};
static_assert(detail::fits_task<Generic, Types> && has_hook<Generic, hook::on_fit_start>);
struct Inherits : Plain {
  int steps = 0;
  Tensor shared_step(Net&) const { return {}; }
  void setup();
  void forward();
};
static_assert(detail::fits_task<Inherits, Types>);
struct FinalTask final {
  auto configure_model() const { return std::make_shared<Net>(); }
  Optimizer configure_optimizers(const Parameters&) const { return {}; }
  Tensor training_step(Net&, const Batch&, Step&) const { return {}; }
  void on_fit_end(LoopState&) {}
};
static_assert(detail::fits_task<FinalTask, Types> && has_hook<FinalTask, hook::on_fit_end>);

// What is refused, with the report that fit would print.
template <class T, class Wanted>
constexpr bool reports = std::is_same_v<Report<T>, Wanted>;
struct NoModel : Plain {
  void configure_model() = delete;
};
static_assert(reports<NoModel, hook::configure_model::Report<NoModel>>, "a deleted hook is there and cannot be called");
struct Empty {};
static_assert(reports<Empty, detail::NoConfigureModel<Empty>> && reports<int, detail::NoConfigureModel<int>>);
struct ByValue : Plain {
  Net configure_model() const { return {}; }
};
static_assert(reports<ByValue, detail::ModelByValue<Net>>);
struct NoReturn : Plain {
  void configure_optimizers(const Parameters&) const {}
};
static_assert(reports<NoReturn, detail::NoOptimizer<void>>);
struct NumberAsLoss : Plain {
  double training_step(Net&, const Batch&, Step&) const { return 0; }
};
static_assert(reports<NumberAsLoss, detail::NoLoss<double, Tensor>>);
struct WrongValidation : Plain {
  void validation_step(Net&, const Batch&) const {}
};
static_assert(reports<WrongValidation, hook::validation_step::Report<WrongValidation>>);
struct WrongMoment : Plain {
  void on_fit_start() {}
};
static_assert(reports<WrongMoment, hook::on_fit_start::Report<WrongMoment>>);
struct CallbackHook : Plain {
  void on_train_step_end(LoopState&) {}
};
static_assert(reports<CallbackHook, detail::HookOfCallback<CallbackHook, hook::on_train_step_end>>);

// A step must not work on a copy of the model, however it is written; a copy of the batch is a copy of handles.
template <class T, class Step = hook::training_step>
constexpr bool copies = reports<T, detail::ModelIsCopied<T, Step>>;
struct CopiesModel : Plain {
  Tensor training_step(Net, const Batch&, Step&) { return {}; }
};
struct CopiesBoth : Plain {
  auto training_step(const Net, Batch, const Step&) const { return Tensor{}; }
};
struct GenericCopy : Plain {
  auto training_step(auto, const auto&, auto&) const { return Tensor{}; }
};
struct StaticCopy : Plain {
  static Tensor training_step(Net, const Batch&, Step&) { return {}; }
};
struct InheritsCopy : CopiesModel {};
struct FinalCopy final : CopiesModel {};
struct CopyInValidation : Plain {
  void validation_step(Net, const Batch&, Step&) const {}
};
struct CopyInPrediction : Plain {
  Tensor predict_step(auto, const Batch&, Step&) const { return {}; }
};
static_assert(copies<CopiesModel> && copies<CopiesBoth> && copies<GenericCopy> && copies<StaticCopy>);
static_assert(copies<InheritsCopy> && copies<FinalCopy> && copies<const CopiesBoth>);
static_assert(copies<CopyInValidation, hook::validation_step> && copies<CopyInPrediction, hook::predict_step>);
struct CopiesBatch : Plain {
  auto training_step(const Net&, Batch, auto&&) const { return Tensor{}; }
  void validation_step(auto&&, auto, const auto&) const {}
};
static_assert(detail::fits_task<CopiesBatch, Types>);

// The probe finds members of every kind that `&T::name` misses.
struct Overloaded {
  void on_fit_end(int);
  void on_fit_end(char, char);
};
struct Template {
  template <class A, class B>
  void on_fit_end(A, B);
};
struct Data {
  int on_fit_end;
};
struct Static {
  static void on_fit_end();
};
struct Alias {
  using on_fit_end = int;
};
class Private {
  [[maybe_unused]] void on_fit_end(LoopState&) {}
};
struct Child : private Overloaded {};
template <class... T>
constexpr bool all_found_none_fits = ((hook::on_fit_end::found<T> && !has_hook<T, hook::on_fit_end> &&
                                       !detail::fits_callback<T>)&&...);
static_assert(all_found_none_fits<Overloaded, Template, Data, Static, Alias, Private, Child>);
static_assert(!hook::on_fit_end::found<Empty> && !hook::on_fit_end::found<int> && !hook::on_fit_end::found<int*>);

// Callbacks and loggers.
struct Counter {
  void on_train_step_end(LoopState&) {}
  void on_exception(LoopState&, const std::exception_ptr&) {}
};
struct Rows {
  void log_metrics(const MetricsRow&) {}
  void log_options(int) {}
  void finish() {}
};
struct Both : Counter, Rows {};
static_assert(Callback<Counter> && !Logger<Counter> && !Callback<Rows> && Logger<Rows> && Callback<Both> &&
              Logger<Both>);
static_assert(detail::fits_callback<Counter> && detail::fits_callback<Rows> && detail::fits_callback<Both>);
static_assert(std::is_same_v<detail::CallbackReport<Empty>, detail::NoHook<Empty>>);
static_assert(
    std::is_same_v<detail::CallbackReport<std::unique_ptr<Counter>>, detail::NoHook<std::unique_ptr<Counter>>>);
struct WrongFinish : Rows {
  void finish(int) {}
};
static_assert(std::is_same_v<detail::CallbackReport<WrongFinish>, hook::finish::Report<WrongFinish>>);

// A helper with a near name beside the hook is the user's own business; without the hook it is a near miss.
struct Helper : Plain {
  void train_step() {}
  void build_model() {}
  void validation_step(Net&, const Batch&, Step&) const {}
  void eval_step() {}
};
static_assert(detail::fits_task<Helper, Types>);
struct NoHelper : Plain {
  void eval_step() {}
};
static_assert(reports<NoHelper, detail::NearMissOfStep<NoHelper>>);
struct Timer {
  double fit_start = 0;
  void on_fit_start(LoopState&) {}
};
static_assert(detail::fits_callback<Timer>);
struct NearMoment : Plain {
  void on_train_epoch_begin(LoopState&) {}
};
static_assert(reports<NearMoment, detail::NearMissOfMoment<NearMoment>>);
struct FinalNear final {
  void on_train_begin(LoopState&) {}
};
static_assert(!detail::fits_callback<FinalNear>);

}  // namespace

int main() {
  check::that(hook::on_exception::name == "on_exception" && hook::log_metrics::name == "log_metrics",
              "hooks have names");
  unsigned number = 0;
  for (const RuleRow& row : hook_rule_rows) {
    const std::string id = "dovetail-E0" + std::to_string(20 + number++);
    check::that(row.id == id && row.when == When::fit && !row.refused.empty(), id);
  }
  std::puts("hooks of Task, Callback, Logger: found, fitting, refused; near misses");
  return check::summary("hooks");
}
