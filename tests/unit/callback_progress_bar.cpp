// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <dovetail/callback/progress_bar.hpp>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace dovetail;

/// A fit as the bar sees it, with a clock that goes on by a second per step.
struct Fit {
  RunContext run;
  LoopState state{run};
  std::ostringstream out;
  double time = 100;
  ProgressBar bar;

  explicit Fit(ProgressBar::Options options, int64_t epochs = 1, int64_t batches = 20)
      : run(TrainerOptions{.max_epochs = epochs}, StrategyTraits{}, PrecisionTraits{}), bar(with(std::move(options))) {
    state.batches_per_epoch = batches;
    bar.on_fit_start(state);
  }

  ProgressBar::Options with(ProgressBar::Options options) {
    options.out = &out;
    options.clock = [this] { return time; };
    return options;
  }

  void step(double loss = 0.5) {
    ++state.batch;
    ++run.steps_taken;
    state.samples += 64;
    state.loss = loss;
    time += 1;
    bar.on_train_step_end(state);
  }

  void start_epoch() {
    state.batch = state.samples = 0;
    bar.on_train_epoch_start(state);
  }

  void validate(std::vector<MetricsRow::Value> values, bool sanity = false) {
    state.sanity = sanity;
    bar.on_validation_start(state);
    state.validation = {"validation", run.epoch, run.steps_taken, std::move(values)};
    bar.on_validation_end(state);
    state.sanity = false;
  }

  void epoch(std::vector<MetricsRow::Value> values = {{"loss", 0.25}, {"accuracy", 0.875}}) {
    start_epoch();
    while (state.batch < state.batches_per_epoch) step();
    validate(std::move(values));
    bar.on_train_epoch_end(state);
    ++run.epoch;
  }

  std::string text() { return out.str(); }
  std::vector<std::string> lines() {
    std::istringstream stream(text());
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }
};

auto count(const std::string& text, char c) {
  return std::count(text.begin(), text.end(), c);
}

}  // namespace

TEST_CASE("elsewhere than on a terminal the bar is plain lines, one for each tenth of an epoch", "[callback]") {
  Fit fit({}, 2);
  fit.validate({{"loss", 1.0}}, true);
  fit.epoch();
  fit.epoch();
  fit.bar.on_fit_end(fit.state);
  CHECK(count(fit.text(), '\r') == 0);
  CHECK(count(fit.text(), '\x1b') == 0);
  const auto lines = fit.lines();
  REQUIRE(lines.size() == 20);
  CHECK(lines[0] == "epoch 1/2   10 %  loss 0.5  64 samples/s  0:38 left");
  CHECK(lines[8] == "epoch 1/2   90 %  loss 0.5  64 samples/s  0:22 left");
  CHECK(lines[9] == "epoch 1/2  100 %  loss 0.5  64 samples/s  in 0:20  validation:  loss 0.25  accuracy 0.875");
  CHECK(lines[10] == "epoch 2/2   10 %  loss 0.5  64 samples/s  0:18 left");
  CHECK(lines[19] == "epoch 2/2  100 %  loss 0.5  64 samples/s  in 0:20  validation:  loss 0.25  accuracy 0.875");
}

TEST_CASE("no line within an epoch comes sooner than the interval allows", "[callback]") {
  Fit fit({.interval = 10});
  fit.epoch();
  REQUIRE(fit.lines().size() == 2);
  CHECK(fit.lines()[0].starts_with("epoch 1/1   50 %"));
}

TEST_CASE("on a terminal one line is drawn again and again", "[callback]") {
  Fit fit({.interval = 4, .terminal = ProgressBar::Terminal::yes, .width = 80});
  fit.epoch();
  fit.bar.on_fit_end(fit.state);
  const std::string text = fit.text();
  CHECK(count(text, '\n') == 1);
  CHECK(text.ends_with(
      "\repoch 1/1  100 %  loss 0.5  64 samples/s  in 0:20  validation:  loss 0.25  accuracy 0.875\x1b[K\n"));
  // The start, steps 4, 8, 12, 16, 20, validation, and the line that stays.
  CHECK(count(text, '\r') == 8);
  CHECK(text.find("\repoch 1/1   60 % [############--------]  loss 0.5  64 samples/s  0:08 left\x1b[K") != text.npos);
  CHECK(text.find("validating\x1b[K") != text.npos);
}

TEST_CASE("what is drawn over fits into the terminal", "[callback]") {
  Fit fit({.interval = 0, .terminal = ProgressBar::Terminal::yes, .width = 30});
  fit.start_epoch();
  for (int i = 0; i < 5; ++i) fit.step();
  std::string text = fit.text();
  for (std::size_t from = text.find('\r'); from != text.npos;) {
    const std::size_t to = text.find("\x1b[K", from);
    REQUIRE(to != text.npos);
    CHECK(to - from - 1 <= 29);
    from = text.find('\r', to);
  }
}

TEST_CASE("the bar leaves the cursor at the start of a line", "[callback]") {
  Fit stopped({.terminal = ProgressBar::Terminal::yes});
  stopped.start_epoch();
  stopped.step();
  SECTION("when an exception ends the fit") {
    stopped.bar.on_exception(stopped.state, nullptr);
    CHECK(stopped.text().ends_with("\x1b[K\n"));
    stopped.bar.on_fit_end(stopped.state);  // nothing is left to close
    CHECK(count(stopped.text(), '\n') == 1);
  }
  SECTION("when a callback ends it") {
    stopped.bar.on_train_epoch_end(stopped.state);
    stopped.state.stop("enough");
    stopped.bar.on_fit_end(stopped.state);
    CHECK(stopped.text().ends_with("\rstopped after step 1: enough\x1b[K\n"));
    CHECK(stopped.text().find("    5 %  loss 0.5") != std::string::npos);  // as far as it came
  }
}

TEST_CASE("the validation before the first step leaves nothing behind", "[callback]") {
  Fit fit({.terminal = ProgressBar::Terminal::yes});
  fit.validate({{"loss", 9.0}}, true);
  CHECK(fit.text() == "\rvalidation before the first step\x1b[K\r\x1b[K");
  fit.epoch();
  CHECK(fit.text().find("loss 9") == std::string::npos);
}

TEST_CASE("a quiet bar prints nothing", "[callback]") {
  Fit fit({.quiet = true, .terminal = ProgressBar::Terminal::yes});
  fit.epoch();
  fit.bar.on_fit_end(fit.state);
  CHECK(fit.text().empty());
  CHECK_FALSE(fit.bar.needs_steps());
}

TEST_CASE("time left counts steps where they end the fit sooner", "[callback]") {
  std::ostringstream out;
  double time = 0;
  RunContext run(TrainerOptions{.max_epochs = 100, .max_steps = 10}, StrategyTraits{}, PrecisionTraits{});
  LoopState state(run);
  state.batches_per_epoch = 20;
  ProgressBar bar({.out = &out, .clock = [&] { return time; }});
  bar.on_fit_start(state);
  bar.on_train_epoch_start(state);
  for (int i = 0; i < 4; ++i) {
    ++state.batch;
    ++run.steps_taken;
    time += 2;
    bar.on_train_step_end(state);
  }
  CHECK(out.str().find("epoch 1/100   20 %  loss 0  ? samples/s  0:12 left\n") != std::string::npos);
}

TEST_CASE("a skipped step is marked", "[callback]") {
  Fit fit({});
  fit.start_epoch();
  fit.step();
  fit.state.step_skipped = true;
  fit.step();
  CHECK(fit.text().find("loss 0.5 (step skipped)  64 samples/s") != std::string::npos);
}
