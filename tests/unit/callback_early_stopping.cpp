// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <dovetail/callback/early_stopping.hpp>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace {

using namespace dovetail;
using Catch::Matchers::Contains;

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// A fit that only validates.
struct Validations {
  RunContext run{TrainerOptions{}, StrategyTraits{}, PrecisionTraits{}};
  LoopState state{run};
  EarlyStopping stopping;

  explicit Validations(EarlyStopping::Options options = {}) : stopping(std::move(options)) {
    state.validation_batches = 1;
    stopping.on_fit_start(state);
  }

  void validate(double value, const std::string& name = "loss") {
    state.validation = {"validation", run.epoch, 0, {{"other", 1.0}, {name, value}}};
    stopping.on_validation_end(state);
    ++run.epoch;
  }

  /// How many of the values are needed to stop; 0: it does not stop.
  int stops_after(const std::vector<double>& values, const std::string& name = "loss") {
    for (std::size_t i = 0; i < values.size(); ++i) {
      validate(values[i], name);
      if (state.stopping()) return int(i) + 1;
    }
    return 0;
  }
};

Error error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  FAIL("no Error was thrown");
  return {ExitCode::done, ""};
}

}  // namespace

TEST_CASE("EarlyStopping waits for `patience` validations without improvement", "[callback]") {
  CHECK(Validations({.patience = 3}).stops_after({1.0, 0.9, 0.95, 0.9, 0.91}) == 5);
  CHECK(Validations({.patience = 3}).stops_after({1.0, 1.1, 1.1, 0.5, 0.6, 0.6}) == 0);  // an improvement starts anew
  CHECK(Validations({.patience = 1}).stops_after({1.0, 0.9, 0.9}) == 3);
  CHECK(Validations({.patience = 0}).stops_after({1.0, 0.9, 0.9}) == 3);
  CHECK(Validations({.monitor = "accuracy", .mode = Mode::max, .patience = 2})
            .stops_after({0.5, 0.6, 0.59, 0.6, 0.7}, "accuracy") == 4);
}

TEST_CASE("EarlyStopping says why it stopped, and what was best", "[callback]") {
  Validations fit({.patience = 2});
  CHECK(fit.stops_after({1.0, 0.25, 0.5, 0.5}) == 4);
  CHECK(fit.state.stop_reason() == "early stopping: 'loss' has not improved in 2 validations; best 0.25 in epoch 2");
  CHECK(fit.stopping.best() == 0.25);
  CHECK(fit.stopping.best_epoch() == 1);
  CHECK(fit.stopping.waited() == 2);

  fit.stopping.on_fit_start(fit.state);  // a second fit begins anew
  CHECK(fit.stopping.best() == infinity);
  CHECK(fit.stopping.best_epoch() == -1);
  CHECK(fit.stopping.waited() == 0);
}

TEST_CASE("EarlyStopping counts an improvement only beyond min_delta", "[callback]") {
  CHECK(Validations({.patience = 2, .min_delta = 0.125}).stops_after({1.0, 0.875, 0.875}) == 3);  // exactly min_delta
  CHECK(Validations({.patience = 2, .min_delta = 0.125}).stops_after({1.0, 0.86, 0.72, 0.5}) == 0);
  CHECK(Validations({.mode = Mode::max, .patience = 1, .min_delta = 0.5}).stops_after({1.0, 1.6, 2.0}) == 3);
}

TEST_CASE("EarlyStopping stops at the threshold", "[callback]") {
  Validations fit({.threshold = 0.25});
  CHECK(fit.stops_after({1.0, 0.5, 0.25, 0.1}) == 3);
  CHECK(fit.state.stop_reason() == "early stopping: 'loss' is 0.25 and has reached the threshold 0.25");
  CHECK(fit.stopping.best() == 0.25);
  CHECK(Validations({.mode = Mode::max, .threshold = 0.9}).stops_after({0.5, 0.89, 0.91}) == 3);
}

TEST_CASE("EarlyStopping stops at a metric that is not finite, unless told otherwise", "[callback]") {
  Validations fit;
  CHECK(fit.stops_after({1.0, not_a_number}) == 2);
  CHECK(fit.state.stop_reason() == "early stopping: 'loss' is nan");
  CHECK(Validations().stops_after({-infinity}) == 1);
  CHECK(Validations({.patience = 3, .check_finite = false})
            .stops_after({not_a_number, 1.0, not_a_number, not_a_number, 0.5}) == 0);
  CHECK(
      Validations({.patience = 2, .threshold = 0.5, .check_finite = false}).stops_after({not_a_number, not_a_number}) ==
      2);
}

TEST_CASE("EarlyStopping does not look at the validation before the first step", "[callback]") {
  Validations fit({.patience = 1});
  fit.state.sanity = true;
  fit.validate(0.0);
  fit.validate(not_a_number);
  fit.validate(1.0, "unknown");
  fit.state.sanity = false;
  CHECK(fit.stopping.best() == infinity);
  CHECK(fit.stops_after({2.0, 1.0, 0.5}) == 0);
}

TEST_CASE("EarlyStopping names what was logged when its metric is missing", "[callback]") {
  Validations fit({.monitor = "accuracy"});
  const Error missing = error_of([&] { fit.validate(1.0); });
  CHECK(missing.code() == ExitCode::user_code);
  CHECK(std::string(missing.what()) ==
        "EarlyStopping watches 'accuracy', but validation logged only 'other', 'loss' (rank 0): call "
        "step.log(\"accuracy\", "
        "...) in validation_step, or set monitor to a name that is logged.");
  fit.state.validation = {"validation", 0, 0, {}};
  CHECK_THAT(error_of([&] { fit.stopping.on_validation_end(fit.state); }).what(),
             Contains("validation logged nothing"));
}

TEST_CASE("EarlyStopping refuses what cannot work", "[callback]") {
  const Error patience = error_of([] { EarlyStopping{{.patience = -1}}; });
  CHECK(patience.code() == ExitCode::arguments);
  CHECK_THAT(patience.what(), Contains("patience is -1"));
  CHECK_THAT(error_of([] { EarlyStopping{{.min_delta = -0.5}}; }).what(), Contains("min_delta is -0.5"));
  CHECK_THAT(error_of([] { EarlyStopping{{.min_delta = not_a_number}}; }).what(), Contains("min_delta is nan"));

  Validations fit;
  fit.state.validation_batches = 0;
  const Error nothing = error_of([&] { fit.stopping.on_fit_start(fit.state); });
  CHECK(nothing.code() == ExitCode::user_code);
  CHECK_THAT(nothing.what(), Contains("this fit has no validation"));
}
