// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <dovetail/callback/early_stopping.hpp>
#include <dovetail/callback/lambda_callback.hpp>
#include <dovetail/callback/model_summary.hpp>
#include <dovetail/callback/progress_bar.hpp>
#include <dovetail/core/hook_report.hpp>
#include <dovetail/logger/csv.hpp>
#include <dovetail/logger/json_lines.hpp>
#include <dovetail/loop/observer.hpp>

#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace dovetail;

// Our own callbacks and loggers pass the checks that every user's callback has to pass.
using dovetail::detail::fits_callback;
static_assert(fits_callback<EarlyStopping> && fits_callback<LambdaCallback> && fits_callback<ModelSummary> &&
              fits_callback<ProgressBar> && fits_callback<CSVLogger> && fits_callback<JSONLinesLogger>);

struct Fixture {
  RunContext run{TrainerOptions{}, StrategyTraits{}, PrecisionTraits{}};
  LoopState state{run};
};

struct EveryHook {
  std::vector<std::string> called;
  void on_fit_start(LoopState&) { called.push_back("fit start"); }
  void on_train_epoch_start(LoopState&) { called.push_back("epoch start"); }
  void on_train_step_end(LoopState&) { called.push_back("step"); }
  void on_train_epoch_end(LoopState&) { called.push_back("epoch end"); }
  void on_validation_start(LoopState&) { called.push_back("validation start"); }
  void on_validation_end(LoopState&) { called.push_back("validation end"); }
  void on_fit_end(LoopState&) { called.push_back("fit end"); }
  void on_exception(LoopState&, const std::exception_ptr&) { called.push_back("exception"); }
  void log_metrics(const MetricsRow& row) { called.push_back("row of " + std::string(row.stage)); }
  void log_options(const ResolvedOptions& options) {
    called.push_back(options.at(0).first + "=" + options.at(0).second);
  }
  void finish() { called.push_back("finish"); }
};

struct OnlyFitEnd {
  int ends = 0;
  void on_fit_end(LoopState&) { ++ends; }
};

/// A loop in miniature: each hook once.
void call_all(Observers& observers, LoopState& state) {
  const MetricsRow row{"train", 0, 1, {{"loss", 0.5}}};
  observers.each([&](Observer& o) { o.log_options(state, {{"seed", "7"}}); });
  observers.each([&](Observer& o) { o.on_fit_start(state); });
  observers.each([&](Observer& o) { o.on_train_epoch_start(state); });
  observers.each_step([&](Observer& o) { o.on_train_step_end(state); });
  observers.each([&](Observer& o) { o.log_metrics(state, row); });
  observers.each([&](Observer& o) { o.on_validation_start(state); });
  observers.each([&](Observer& o) { o.on_validation_end(state); });
  observers.each([&](Observer& o) { o.on_train_epoch_end(state); });
  observers.each([&](Observer& o) { o.on_fit_end(state); });
}

int step_calls(Observers& observers) {
  int calls = 0;
  observers.each_step([&](Observer&) { ++calls; });
  return calls;
}

}  // namespace

TEST_CASE("an observer calls each hook that the callback has, and no other", "[callback]") {
  Fixture fixture;
  EveryHook every;
  OnlyFitEnd end;
  Observers observers;
  observers.add(every);
  observers.add(end);
  call_all(observers, fixture.state);
  CHECK(every.called == std::vector<std::string>{"seed=7", "fit start", "epoch start", "step", "row of train",
                                                 "validation start", "validation end", "epoch end", "fit end",
                                                 "finish"});
  CHECK(end.ends == 1);
}

TEST_CASE("only those with a hook for steps are called at steps", "[callback]") {
  Observers none;
  CHECK(step_calls(none) == 0);

  Observers observers;
  observers.add(OnlyFitEnd{});
  observers.add(LambdaCallback{.on_fit_end = [](LoopState&) {}});
  observers.add(EarlyStopping{});
  observers.add(ModelSummary{});
  observers.add(ProgressBar{{.quiet = true}});
  CHECK(observers.size() == 5);
  CHECK(step_calls(observers) == 0);

  observers.add(EveryHook{});
  observers.add(LambdaCallback{.on_train_step_end = [](LoopState&) {}});
  observers.add(ProgressBar{});
  CHECK(step_calls(observers) == 3);
}

TEST_CASE("a callback with a name is referred to, a temporary is moved in, a const one is copied", "[callback]") {
  Fixture fixture;
  struct Counts {
    int* calls;
    int own = 0;
    std::unique_ptr<int> cannot_be_copied{};
    void on_fit_end(LoopState&) { ++*calls, ++own; }
  };
  struct Copied {
    int* calls;
    void on_fit_end(LoopState&) { ++*calls; }
  };
  int calls = 0;
  Counts named{&calls};
  const Copied constant{&calls};
  Observers observers;
  observers.add(named);
  observers.add(Counts{&calls});
  observers.add(constant);
  observers.each([&](Observer& o) { o.on_fit_end(fixture.state); });
  CHECK(calls == 3);
  CHECK(named.own == 1);
}

TEST_CASE("all are told of an exception, also after one of them throws another", "[callback]") {
  Fixture fixture;
  std::string seen;
  Observers observers;
  observers.add(LambdaCallback{
      .on_exception = [](LoopState&, const std::exception_ptr&) { throw std::logic_error("while reporting"); }});
  observers.add(LambdaCallback{.on_exception = [&](LoopState&, const std::exception_ptr& exception) {
    try {
      std::rethrow_exception(exception);
    } catch (const std::exception& error) {
      seen = error.what();
    }
  }});
  EveryHook every;
  observers.add(every);
  observers.report(fixture.state, std::make_exception_ptr(Error(ExitCode::numeric, "the loss is NaN")));
  CHECK(seen == "the loss is NaN");
  CHECK(every.called == std::vector<std::string>{"exception", "finish"});
}

TEST_CASE("a LambdaCallback calls its functions, and what is not given is nothing", "[callback]") {
  Fixture fixture;
  std::vector<std::string> called;
  Observers observers;
  observers.add(
      LambdaCallback{.on_fit_start = [&](LoopState& state) { called.push_back("start"), state.stop("enough"); },
                     .on_train_step_end = [&](LoopState&) { called.push_back("step"); }});
  observers.add(LambdaCallback{});
  call_all(observers, fixture.state);
  observers.report(fixture.state, nullptr);
  CHECK(called == std::vector<std::string>{"start", "step"});
  CHECK(fixture.state.stop_reason() == "enough");
}
