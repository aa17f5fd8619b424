// SPDX-License-Identifier: Apache-2.0
// What a fit does around its steps: how often, in which order, and what it leaves alone.
#include <catch2/catch.hpp>

#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "support/loop_run.hpp"

namespace {

using dovetail::ExitCode;
using dovetail::LoopState;
using namespace loop;

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("T22 a fit builds one model and asks for its optimizers once", "[loop]") {
  for (const Pair pair : {Pair::fp32, Pair::ddp, Pair::scaled, Pair::fp16_mixed, Pair::apex_o3}) {
    Setting setting{.pair = pair};
    setting.options.max_epochs = 3;
    Script script;
    script.optimizer = maker<dovetail::SGD>(dovetail::SGDOptions{.lr = 0.01});
    REQUIRE((script.models == 0 && script.configured == 0));
    fit(setting, script);
    CHECK(script.models == 1);
    CHECK(script.configured == 1);
    CHECK(script.steps == 18);
    fit(setting, script);  // another fit asks anew
    CHECK(script.models == 2);
    CHECK(script.configured == 2);
  }
  // Not even by a fit that is refused before.
  Setting refused;
  refused.options.batch_size = 0;
  Script script;
  CHECK(error_of([&] { fit(refused, script); }).code() == ExitCode::arguments);
  CHECK(script.configured == 0);
  CHECK(script.models == 0);
}

TEST_CASE("configure_optimizers is called when the model is built, and sees what may be optimized", "[loop]") {
  Script script;
  script.model = [] {
    auto net = std::make_shared<Net>();
    net->in->weight.requires_grad_(false);
    return net;
  };
  Names names;
  std::vector<std::vector<int64_t>> shapes;
  bool leaves = true;
  script.optimizer = [&](const Parameters& p) -> AnyOptimizer {
    CHECK(script.models == 1);
    CHECK(script.steps == 0);
    for (const auto& one : p) {
      names.push_back(one.name);
      shapes.push_back(one.shape);
      leaves &= one.tensor.is_leaf() && one.tensor.requires_grad();
    }
    return std::make_unique<dovetail::SGD>(p, dovetail::SGDOptions{.lr = 0.1});
  };
  fit({}, script);
  CHECK(names == Names{"in.bias", "out.weight", "out.bias"});
  CHECK(shapes == std::vector<std::vector<int64_t>>{{4}, {1, 4}, {1}});
  CHECK(leaves);
}

TEST_CASE("T55 how many steps and epochs", "[loop]") {
  struct Case {
    int64_t epochs, max_steps, limit, accumulate;
    int64_t steps, begun, micro_batches;
  };
  for (const Case& c : std::vector<Case>{{1, -1, -1, 1, 6, 1, 6},
                                         {3, -1, -1, 1, 18, 3, 18},
                                         {0, -1, -1, 1, 0, 0, 0},
                                         {5, 8, -1, 1, 8, 2, 8},
                                         {5, 6, -1, 1, 6, 1, 6},
                                         {5, 0, -1, 1, 0, 0, 0},
                                         {2, -1, 4, 1, 8, 2, 8},
                                         {2, -1, 0, 1, 0, 2, 0},
                                         {1, -1, 100, 1, 6, 1, 6},
                                         {2, -1, -1, 4, 4, 2, 12},  // windows of 4 and 2
                                         {2, -1, 5, 3, 4, 2, 10},
                                         {2, 3, -1, 4, 3, 2, 10},
                                         {1, -1, -1, 10, 1, 1, 6}}) {
    CAPTURE(c.epochs, c.max_steps, c.limit, c.accumulate);
    Setting setting;
    setting.options.max_epochs = c.epochs;
    setting.options.max_steps = c.max_steps;
    setting.options.limit_train_batches = c.limit;
    setting.options.accumulate = c.accumulate;
    Script script;
    const Result result = fit(setting, script);
    CHECK(result.steps == c.steps);
    CHECK(result.epochs == c.begun);
    CHECK(script.steps == c.micro_batches);
  }
}

TEST_CASE("every row is seen once per epoch, in another order each time", "[loop]") {
  Setting setting;
  setting.options.max_epochs = 2;
  setting.options.batch_size = 5;  // the last batch has 4
  const auto order = [](Setting setting, Script script = {}) {
    Data data;
    Watch watch;
    fit(setting, script, data, watch);
    return *data.train.asked;
  };
  const std::vector<int64_t> rows = order(setting);
  REQUIRE(rows.size() == 48);
  const std::vector<int64_t> first(rows.begin(), rows.begin() + 24), second(rows.begin() + 24, rows.end());
  std::vector<int64_t> all(24);
  std::iota(all.begin(), all.end(), 0);
  CHECK(first != all);
  CHECK(first != second);
  CHECK(std::set<int64_t>(first.begin(), first.end()).size() == 24);
  CHECK(std::set<int64_t>(second.begin(), second.end()).size() == 24);

  // Neither batches nor windows nor validation nor what the model draws have a say in it.
  Setting other = setting;
  other.options.batch_size = 7;
  other.options.accumulate = 3;
  other.options.sanity_validation_batches = 2;
  Script draws;
  draws.loss = [](Net& net, const Batch& batch, StepContext& step) {
    torch::rand({17});
    return mse(net, batch, step);
  };
  CHECK(order(other, draws) == rows);
  other.options.seed = 2;
  CHECK(order(other) != rows);

  setting.options.shuffle = false;
  std::vector<int64_t> twice = all;
  twice.insert(twice.end(), all.begin(), all.end());
  CHECK(order(setting) == twice);
}

TEST_CASE("the same seed gives the same bits, another one others", "[loop]") {
  Script script;
  script.loss = [](Net& net, const Batch& batch, StepContext& step) {  // with dropout
    return torch::mse_loss(net.out(torch::dropout(torch::tanh(net.in(batch.data)), 0.5, step.training())),
                           batch.target);
  };
  const auto run = [&](uint64_t seed) {
    Setting setting;
    setting.options.max_epochs = 2;
    setting.options.seed = seed;
    Script mine = script;
    return weights(fit(setting, mine));
  };
  const Tensor one = run(1);
  torch::manual_seed(99);  // what the process did before is no part of it
  torch::rand({3});
  CHECK(torch::equal(run(1), one));
  CHECK_FALSE(torch::equal(run(2), one));

  // The seed is of weights, too.
  Setting nothing;
  nothing.options.max_epochs = 0;
  Script untrained;
  const Tensor w1 = weights(fit(nothing, untrained));
  nothing.options.seed = 2;
  CHECK_FALSE(torch::equal(weights(fit(nothing, untrained)), w1));
}

TEST_CASE("a Trainer can be used twice", "[loop]") {
  Setting setting{.scaler = {.init = 1024, .interval = 3}};
  setting.options.max_epochs = 2;
  Script script;
  Data data;
  Watch watch;
  std::vector<double> scales;
  watch.see = [&](const std::string& hook, LoopState& s) {
    if (hook == "step_end") scales.push_back(s.run.scaler->scale());
  };
  const auto [first, kept, second] = fit_twice(setting, script, data, watch);
  CHECK(torch::equal(weights(first), kept));  // the first result is its own
  CHECK(torch::equal(weights(second), kept));
  CHECK(first.model != second.model);
  CHECK(second.steps == 12);
  std::vector<double> expected{1024, 1024, 2048, 2048, 2048, 4096, 4096, 4096, 8192, 8192, 8192, 16384};
  expected.insert(expected.end(), expected.begin(), expected.begin() + 12);
  CHECK(scales == expected);
}

TEST_CASE("T3 hooks come in one order", "[loop]") {
  Setting setting;
  setting.options.max_epochs = 2;
  setting.options.accumulate = 4;  // steps after 4 and 2 batches
  setting.options.sanity_validation_batches = 1;
  setting.options.log_every = 3;
  Script script;
  Names calls;
  script.loss = [&](Net& net, const Batch& batch, StepContext& step) {
    calls.push_back("train " + std::to_string(step.epoch()) + " " + std::to_string(step.step()));
    const Tensor loss = mse(net, batch, step);
    step.log("loss", loss);
    return loss;
  };
  script.validate = [&](Net&, const Batch& batch, StepContext& step) {
    calls.push_back("validate " + std::to_string(batch.samples()));
    step.log("rows", 1.0);
    CHECK_FALSE(step.training());
  };
  Watch watch;
  watch.see = [&](const std::string& hook, LoopState& s) {
    std::string text = hook;
    if (hook == "step_end" || hook == "epoch_end")
      text += " " + std::to_string(s.epoch()) + " " + std::to_string(s.step()) + " " + std::to_string(s.samples);
    if (s.sanity) text += " sanity";
    calls.push_back(text);
  };
  watch.row = [&](const dovetail::MetricsRow& row) {
    calls.push_back("row " + std::string(row.stage) + " " + std::to_string(row.step));
  };
  Data data;
  fit(setting, script, data, watch);

  Names expected{"fit_start", "validation_start sanity", "validate 4", "validation_end sanity"};
  for (const std::string epoch : {"0", "1"}) {
    const bool first = epoch == "0";
    const std::string before = first ? "0" : "2", between = first ? "1" : "3", after = first ? "2" : "4";
    expected.push_back("epoch_start");
    for (int i = 0; i < 4; ++i) expected.push_back("train " + epoch + " " + before);
    if (!first) expected.push_back("row train 3");  // every third step
    expected.push_back("step_end " + epoch + " " + between + " 16");
    for (int i = 0; i < 2; ++i) expected.push_back("train " + epoch + " " + between);
    expected.push_back("step_end " + epoch + " " + after + " 24");
    expected.push_back("row train " + after);
    for (const char* one : {"validation_start", "validate 4", "validate 4", "validate 2"}) expected.push_back(one);
    expected.push_back("row validation " + after);
    expected.push_back("validation_end");
    expected.push_back("epoch_end " + epoch + " " + after + " 24");
  }
  expected.push_back("fit_end");
  CHECK(calls == expected);
}

TEST_CASE("an exception is told to observers once, and goes on", "[loop]") {
  Script script;
  script.loss = [&](Net& net, const Batch& batch, StepContext& step) {
    if (step.step() == 2) throw std::logic_error("not today");
    return mse(net, batch, step);
  };
  Names calls;
  Watch watch;
  watch.see = [&](const std::string& hook, LoopState&) { calls.push_back(hook); };
  Data data;
  CHECK_THROWS_WITH(fit({}, script, data, watch), "not today");
  CHECK(calls == Names{"fit_start", "epoch_start", "step_end", "step_end", "exception"});
}

TEST_CASE("when validation runs, and over what", "[loop]") {
  struct Case {
    int64_t epochs, every, limit, sanity;
    int validations;  // batches
  };
  for (const Case& c : std::vector<Case>{{2, 1, -1, 0, 6},
                                         {2, 1, -1, 2, 8},
                                         {2, 1, -1, 50, 9},
                                         {2, 0, -1, 0, 0},
                                         {2, 0, -1, 2, 2},
                                         {5, 2, -1, 0, 6},
                                         {2, 1, 1, 0, 2},
                                         {2, 1, 1, 3, 3},
                                         {2, 1, 0, 2, 0},
                                         {0, 1, -1, 2, 2}}) {
    CAPTURE(c.epochs, c.every, c.limit, c.sanity);
    Setting setting;
    setting.options.max_epochs = c.epochs;
    setting.options.validate_every = c.every;
    setting.options.limit_validation_batches = c.limit;
    setting.options.sanity_validation_batches = c.sanity;
    Script script;
    fit(setting, script);
    CHECK(script.validations == c.validations);
  }
  // In order, whatever shuffle says, and every row once.
  Setting setting;
  Script script;
  Data data;
  Watch watch;
  fit(setting, script, data, watch);
  CHECK(*data.validation.asked == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST_CASE("validation disturbs no training", "[loop]") {
  const auto train = [](bool validate) {
    Setting setting;
    setting.options.max_epochs = 3;
    setting.options.sanity_validation_batches = validate ? 2 : 0;
    setting.options.validate_every = validate ? 1 : 0;
    Script script;
    script.optimizer = maker<dovetail::AdamW>(dovetail::AdamWOptions{.lr = 0.01});
    script.loss = [](Net& net, const Batch& batch, StepContext& step) {
      CHECK(step.training());
      CHECK(net.is_training());
      CHECK(torch::GradMode::is_enabled());
      return torch::mse_loss(net.out(torch::dropout(torch::tanh(net.in(batch.data)), 0.5, net.is_training())),
                             batch.target);
    };
    script.validate = [](Net& net, const Batch& batch, StepContext& step) {
      CHECK_FALSE(net.is_training());
      CHECK_FALSE(net.in->is_training());
      CHECK_FALSE(torch::GradMode::is_enabled());
      const Tensor out = net.forward(batch.data);
      CHECK_FALSE(out.requires_grad());
      step.log("loss", torch::mse_loss(out, batch.target));
    };
    const Result result = fit(setting, script);
    CHECK(result.model->is_training());
    CHECK(script.validations == (validate ? 11 : 0));
    return weights(result);
  };
  CHECK(torch::equal(train(true), train(false)));
}

TEST_CASE("a part that its maker put into evaluation mode stays there", "[loop]") {
  Setting setting;
  setting.options.max_epochs = 2;
  Script script;
  script.model = [] {
    auto net = std::make_shared<Net>();
    net->in->eval();  // as one freezes a batch norm
    return net;
  };
  script.loss = [](Net& net, const Batch& batch, StepContext& step) {
    CHECK(net.is_training());
    CHECK_FALSE(net.in->is_training());
    CHECK(net.out->is_training());
    return mse(net, batch, step);
  };
  script.validate = [](Net& net, const Batch& batch, StepContext& step) {
    CHECK_FALSE(net.out->is_training());
    step.log("loss", mse(net, batch, step));
  };
  const Result result = fit(setting, script);
  CHECK(script.validations > 0);
  CHECK_FALSE(result.model->in->is_training());
  CHECK(result.model->out->is_training());

  // A model that comes in evaluation mode as a whole is put to work, and an exception in validation leaves no trace.
  script.model = [] {
    auto net = std::make_shared<Net>();
    net->eval();
    return net;
  };
  std::vector<bool> modes;
  script.loss = [&](Net& net, const Batch& batch, StepContext& step) {
    modes = {net.is_training(), net.in->is_training(), net.out->is_training()};
    return mse(net, batch, step);
  };
  fit(setting, script);
  CHECK(modes == std::vector<bool>{true, true, true});
  const auto net = std::make_shared<Net>();
  net->in->eval();
  try {
    const dovetail::EvaluationMode evaluating(*net);
    modes = {net->is_training(), net->in->is_training(), net->out->is_training()};
    throw std::runtime_error("in validation");
  } catch (const std::runtime_error&) {
  }
  CHECK(modes == std::vector<bool>{false, false, false});
  CHECK(net->is_training());
  CHECK_FALSE(net->in->is_training());
  CHECK(net->out->is_training());
}

TEST_CASE("logged values are means over samples", "[loop]") {
  Setting setting;
  setting.options.batch_size = 7;  // 24 rows: 7, 7, 7, 3; 10 rows: 7, 3
  setting.options.shuffle = false;
  setting.options.sanity_validation_batches = 1;
  Script script;
  script.optimizer = maker<dovetail::SGD>(dovetail::SGDOptions{.lr = 0});
  script.loss = [](Net& net, const Batch& batch, StepContext& step) {
    const Tensor loss = mse(net, batch, step);
    step.log("loss", loss);
    step.log("first", batch.target[0].item<double>());
    return loss;
  };
  std::vector<dovetail::MetricsRow> rows;
  double last_loss = 0;
  Watch watch;
  watch.row = [&](const dovetail::MetricsRow& row) { rows.push_back(row); };
  watch.see = [&](const std::string&, LoopState& s) { last_loss = s.loss; };
  Data data;
  const Result result = fit(setting, script, data, watch);
  torch::NoGradGuard no_grad;
  const double train = torch::mse_loss(result.model->forward(data.train.x), data.train.y).item<double>();
  const double validation = torch::mse_loss(result.model->forward(data.validation.x), data.validation.y).item<double>();
  const Tensor y = data.train.y;
  REQUIRE(rows.size() == 2);  // the sanity run is in no row
  CHECK(rows[0].stage == "train");
  CHECK(rows[0].epoch == 0);
  CHECK(rows[0].step == 4);
  REQUIRE(rows[0].values.size() == 2);
  CHECK(*rows[0].find("loss") == Approx(train).epsilon(1e-6));
  CHECK(*rows[0].find("first") == Approx((7 * (y[0] + y[7] + y[14]) + 3 * y[21]).item<double>() / 24).epsilon(1e-6));
  CHECK(rows[0].find("other") == nullptr);
  CHECK(rows[1].stage == "validation");
  CHECK(*rows[1].find("loss") == Approx(validation).epsilon(1e-6));
  const double tail =
      torch::mse_loss(result.model->forward(data.train.x.slice(0, 21)), data.train.y.slice(0, 21)).item<double>();
  CHECK(last_loss == Approx(tail).epsilon(1e-6));
  CHECK(result.loss == last_loss);
}

TEST_CASE("what fit gives back", "[loop]") {
  Setting setting;
  setting.options.max_epochs = 2;
  Script script;
  std::shared_ptr<Net> built;
  script.model = [&] { return built = std::make_shared<Net>(); };
  const Result result = fit(setting, script);
  CHECK(result.model == built);
  CHECK(result.steps == 12);
  CHECK(result.epochs == 2);
  CHECK(std::isfinite(result.loss));
  CHECK(result.validation.stage == "validation");
  CHECK(result.validation.epoch == 1);
  CHECK(result.validation.step == 12);
  REQUIRE(result.validation.find("loss"));
  CHECK(result.stop_reason.empty());
  CHECK(result.communication.calls == 0);  // one rank talks to nobody
}

TEST_CASE("a callback ends the fit after a step; the first reason stays", "[loop]") {
  Setting setting;
  setting.options.max_epochs = 4;
  Script script;
  Watch watch;
  Names calls;
  watch.see = [&](const std::string& hook, LoopState& s) {
    calls.push_back(hook);
    if (hook == "step_end" && s.step() == 8) {
      s.stop("enough");
      s.stop("more than enough");
    }
  };
  Data data;
  const Result result = fit(setting, script, data, watch);
  CHECK(result.steps == 8);
  CHECK(result.epochs == 2);
  CHECK(result.stop_reason == "enough");
  CHECK(calls.back() == "fit_end");
  CHECK(script.steps == 8);
}

TEST_CASE("early stopping ends a fit", "[loop]") {
  Setting setting;
  setting.options.max_epochs = 10;
  setting.options.sanity_validation_batches = 1;
  Script script;
  // By the epoch: gets better twice, then no more. The sanity run, which is the best of all, does not count.
  script.validate = [](Net&, const Batch&, StepContext& step) {
    const std::map<int64_t, double> values{{0, step.step() == 0 ? 0.0 : 3.0}, {1, 2.0}};
    step.log("score", values.contains(step.epoch()) ? values.at(step.epoch()) : 2.5);
  };
  dovetail::EarlyStopping stopping({.monitor = "score", .patience = 2});
  Data data;
  const Result result = fit(setting, script, data, stopping);
  CHECK(result.epochs == 4);
  CHECK(result.steps == 24);
  CHECK(stopping.best() == 2.0);
  CHECK(stopping.best_epoch() == 1);
  CHECK(result.stop_reason.find("'score' has not improved in 2 validations; best 2") != std::string::npos);

  dovetail::EarlyStopping elsewhere({.monitor = "accuracy"});
  const auto error = error_of([&] { fit(setting, script, data, elsewhere); });
  CHECK(error.code() == ExitCode::user_code);
  CHECK(std::string(error.what()).find("'accuracy'") != std::string::npos);
}

TEST_CASE("a step takes the memory again that the one before freed, without asking the kernel", "[loop]") {
  const auto faults = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  };
  Setting setting;
  setting.options.max_epochs = 4;
  Script script;
  script.loss = [](Net& net, const Batch& batch, StepContext& step) {
    const auto large = torch::ones({4 << 20}), larger = torch::ones({6 << 20});  // 16 and 24 MiB: 10,240 pages
    return mse(net, batch, step) + 0 * (large[0] + larger[0]);
  };
  std::vector<long> after;
  Watch watch;
  watch.see = [&](const std::string& hook, LoopState&) {
    if (hook == "step_end") after.push_back(faults());
  };
  Data data;
  fit(setting, script, data, watch);
  REQUIRE(after.size() == 24);
  const long new_pages = after[23] - after[3];
  std::printf("pages that the kernel had to fill in 20 steps, each of which takes 10,240 and frees them: %ld\n",
              new_pages);
  CHECK(new_pages < 3 * 10240);  // the heap may grow a little more
}
