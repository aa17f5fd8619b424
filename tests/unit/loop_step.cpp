// SPDX-License-Identifier: Apache-2.0
// One step: accumulation, clipping, loss scaling, losses that are none, parameters without gradient.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <cstdio>
#include <limits>

#include "support/loop_run.hpp"

namespace {

using dovetail::ExitCode;
using dovetail::LoopState;
using namespace loop;
using Catch::Matchers::Contains;
using Options = dovetail::TrainerOptions;

/// Data in order, no validation.
Setting in_order(Pair pair = Pair::fp32) {
  Setting setting{.pair = pair};
  setting.options.shuffle = false;
  setting.options.validate_every = 0;
  return setting;
}

/// The loop as one writes it by hand: windows of `accumulate` batches as one batch each, LibTorch's clipping.
template <class Optimizer, class With>
Tensor by_hand(const Options& options, const With& with, bool spare = false,
               std::function<Tensor(Net&, const Batch&, int64_t step)> loss = {}) {
  torch::manual_seed(options.seed);
  Net net(spare);
  Optimizer optimizer(net.parameters(), with);
  const Data data;
  int64_t step = 0;
  for (int64_t epoch = 0; epoch < options.max_epochs; ++epoch)
    for (int64_t first = 0, n = data.train.size(), window = options.batch_size * options.accumulate; first < n;
         first += window, ++step) {
      Batch batch{data.train.x.slice(0, first, first + window), data.train.y.slice(0, first, first + window)};
      optimizer.zero_grad();
      (loss ? loss(net, batch, step) : torch::mse_loss(net.forward(batch.data), batch.target)).backward();
      if (const auto clip = options.gradient_clip) {
        if (clip->kind == dovetail::ClipOptions::Kind::norm)
          torch::nn::utils::clip_grad_norm_(net.parameters(), clip->limit);
        else
          torch::nn::utils::clip_grad_value_(net.parameters(), clip->limit);
      }
      optimizer.step();
    }
  return flat(net);
}

/// `spare` comes first, then the 21 weights of the layers.
Tensor without_spare(const Tensor& weights) {
  return weights.slice(0, -21);
}
Tensor spare_of(const Tensor& weights) {
  return weights.slice(0, 0, -21);
}

/// The loss with `spare` in it.
Tensor with_spare(Net& net, const Batch& batch) {
  return torch::mse_loss(net.forward(batch.data) + (net.spare * batch.data.slice(1, 0, 2)).sum(1, true), batch.target);
}

constexpr double inf = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("T54 parameters change at the ends of windows only, and after the last batch of an epoch", "[loop]") {
  for (const Pair pair : {Pair::fp32, Pair::ddp, Pair::scaled}) {
    Setting setting = in_order(pair);
    setting.options.max_epochs = 2;
    setting.options.accumulate = 4;  // of 6 batches
    Script script;
    std::vector<Tensor> seen;
    script.loss = [&](Net& net, const Batch& batch, StepContext& step) {
      seen.push_back(flat(net));
      return mse(net, batch, step);
    };
    const Tensor end = weights(fit(setting, script));
    REQUIRE(seen.size() == 12);
    std::string changes;
    for (std::size_t i = 0; i < seen.size(); ++i)
      changes += torch::equal(seen[i], i + 1 < seen.size() ? seen[i + 1] : end) ? '.' : 'x';
    CHECK(changes == "...x.x...x.x");
  }
}

TEST_CASE("B038 a window is one batch of all its samples", "[loop]") {
  for (const Pair pair : {Pair::fp32, Pair::ddp, Pair::scaled})
    for (const int64_t batch_size : {1, 4, 5, 7, 24, 100})
      for (const int64_t accumulate : {1, 2, 3, 7}) {
        CAPTURE(int(pair), batch_size, accumulate);
        Setting setting = in_order(pair);
        setting.options.max_epochs = 2;
        setting.options.batch_size = batch_size;
        setting.options.accumulate = accumulate;
        Script script;
        CHECK(apart(weights(fit(setting, script)),
                    by_hand<torch::optim::SGD>(setting.options, torch::optim::SGDOptions(0.1))) < 1e-6);
      }
}

TEST_CASE("B104 a loss may be a mean over something else than samples", "[loop]") {
  // Rows with a positive first number count; the others are no part of the loss.
  const auto counting = [](const Batch& batch) { return batch.data.slice(1, 0, 1).gt(0).to(torch::kFloat32); };
  const auto loss = [&](Net& net, const Batch& batch) {
    const Tensor counts = counting(batch);
    return ((net.forward(batch.data) - batch.target).square() * counts).sum() / counts.sum();
  };
  Setting setting = in_order();
  setting.options.batch_size = 6;
  setting.options.accumulate = 2;
  Script script;
  double seen = 0;
  script.loss = [&](Net& net, const Batch& batch, StepContext& step) {
    step.weight(counting(batch).sum().item<double>());
    seen += step.weight();
    return loss(net, batch);
  };
  const Tensor expected =
      by_hand<torch::optim::SGD>(setting.options, torch::optim::SGDOptions(0.1), false,
                                 [&](Net& net, const Batch& batch, int64_t) { return loss(net, batch); });
  CHECK(apart(weights(fit(setting, script)), expected) < 1e-6);
  CHECK((seen > 0 && seen < 24));

  Script nothing;
  nothing.loss = [](Net& net, const Batch& batch, StepContext& step) {
    step.weight(0);
    return mse(net, batch, step);
  };
  auto error = error_of(in_order(), nothing);
  CHECK(error.code() == ExitCode::user_code);
  CHECK_THAT(error.what(), Contains("weight") && Contains("step 0"));
  nothing.loss = [](Net& net, const Batch& batch, StepContext& step) {
    step.weight(-1);
    return mse(net, batch, step);
  };
  error = error_of(in_order(), nothing);
  CHECK(error.code() == ExitCode::user_code);
  CHECK_THAT(error.what(), Contains("weight") && Contains("-1"));
}

TEST_CASE("T44 T47 P23 P24 B029 B034 clipping by norm", "[loop]") {
  for (const Pair pair : {Pair::fp32, Pair::ddp, Pair::scaled})
    for (const int64_t accumulate : {1, 4}) {
      CAPTURE(int(pair), accumulate);
      Setting setting = in_order(pair);
      setting.options.max_epochs = 2;
      setting.options.accumulate = accumulate;
      setting.options.gradient_clip = dovetail::clip_norm(0.05);
      Script script;
      script.optimizer = maker<dovetail::SGD>(dovetail::SGDOptions{.lr = 1});
      std::vector<Tensor> seen;
      std::vector<double> norms;
      Data data;
      Watch watch;
      watch.see = [&](const std::string& hook, LoopState& s) {
        if (hook == "fit_start" || hook == "step_end") seen.push_back(flat(*s.run.module));
        if (hook == "step_end") norms.push_back(s.gradient_norm);
      };
      const Result result = fit(setting, script, data, watch);
      CHECK(apart(weights(result), by_hand<torch::optim::SGD>(setting.options, torch::optim::SGDOptions(1))) < 1e-6);
      // With a learning rate of 1 a step is as long as its gradient.
      for (std::size_t i = 0; i < norms.size(); ++i) {
        REQUIRE(norms[i] > 0.05);
        CHECK((seen[i + 1] - seen[i]).norm().item<double>() == Approx(0.05).epsilon(1e-4));
      }
      // Before clipping, which changes nothing where the norm is below the limit.
      setting.options.gradient_clip = dovetail::clip_norm(1e6);
      std::vector<double> unclipped;
      watch.see = [&](const std::string& hook, LoopState& s) {
        if (hook == "step_end") unclipped.push_back(s.gradient_norm);
      };
      const Result free = fit(setting, script, data, watch);
      CHECK(unclipped[0] == Approx(norms[0]));
      setting.options.gradient_clip.reset();
      CHECK(apart(weights(free), weights(fit(setting, script))) < (pair == Pair::fp32 ? 1e-30 : 1e-6));
    }
}

TEST_CASE("T45 clipping by value", "[loop]") {
  for (const Pair pair : {Pair::fp32, Pair::ddp, Pair::scaled})
    for (const int64_t accumulate : {1, 4}) {
      CAPTURE(int(pair), accumulate);
      Setting setting = in_order(pair);
      setting.options.accumulate = accumulate;
      setting.options.gradient_clip = dovetail::clip_value(0.01);
      Script script;
      script.optimizer = maker<dovetail::SGD>(dovetail::SGDOptions{.lr = 1});
      std::vector<Tensor> seen;
      Data data;
      Watch watch;
      watch.see = [&](const std::string& hook, LoopState& s) {
        if (hook == "fit_start" || hook == "step_end") seen.push_back(flat(*s.run.module));
      };
      fit(setting, script, data, watch);
      CHECK(apart(seen.back(), by_hand<torch::optim::SGD>(setting.options, torch::optim::SGDOptions(1))) < 1e-6);
      for (std::size_t i = 1; i < seen.size(); ++i) CHECK(apart(seen[i], seen[i - 1]) == Approx(0.01).epsilon(1e-4));
    }
}

TEST_CASE("a large tensor, whose gradient autograd keeps, is clipped with the others", "[loop]") {
  for (const auto clip : {dovetail::clip_norm(0.05), dovetail::clip_value(0.01)}) {
    Setting setting = in_order();
    setting.options.gradient_clip = clip;
    Script script;
    script.model = [] {
      auto net = std::make_shared<Net>();
      net->spare = net->register_parameter("spare", torch::ones({(1 << 16) + 1}));
      return net;
    };
    script.loss = [](Net& net, const Batch& batch, StepContext& step) {
      return mse(net, batch, step) + net.spare.square().sum();
    };
    script.optimizer = maker<dovetail::SGD>(dovetail::SGDOptions{.lr = 1});
    std::vector<Tensor> seen;
    Data data;
    Watch watch;
    watch.see = [&](const std::string& hook, LoopState& s) {
      if (hook == "fit_start" || hook == "step_end") seen.push_back(flat(*s.run.module));
    };
    fit(setting, script, data, watch);
    const Tensor change = seen[1] - seen[0];
    if (clip.kind == dovetail::ClipOptions::Kind::norm)
      CHECK(change.norm().item<double>() == Approx(0.05).epsilon(1e-3));
    else
      CHECK(change.abs().max().item<double>() == Approx(0.01).epsilon(1e-3));
    CHECK(without_spare(change).norm().item<double>() > 0);
    CHECK(spare_of(change).norm().item<double>() > 0);
  }
}

TEST_CASE("P59 a loss scale that is a power of two changes no bit", "[loop]") {
  Setting setting = in_order();
  setting.options.max_epochs = 3;
  Script script;
  script.optimizer = maker<dovetail::AdamW>(dovetail::AdamWOptions{.lr = 0.01});
  setting.options.gradient_clip = dovetail::clip_norm(1e9);  // never reached: the unscaled run has a flat home, too
  const Tensor plain = weights(fit(setting, script));
  setting.options.gradient_clip.reset();
  setting.pair = Pair::scaled;
  for (const double scale : {1.0, 0.25, 65536.0}) {
    setting.scaler = {.init = scale, .interval = 5};
    CHECK(torch::equal(weights(fit(setting, script)), plain));
  }
}

namespace {

/// All that a skipped step must leave alone.
struct Kept {
  Tensor weights, moments;
  std::vector<int64_t> counts;  // steps of each parameter, and of the run
  double lr, scale;
  bool skipped;
};

Kept kept(LoopState& s) {
  Kept now;
  now.weights = flat(*s.run.module);
  dovetail::FusedOptimizer& optimizer = *s.run.optimizers[0].fused();
  std::vector<Tensor> moments;
  for (const auto& group : optimizer.param_groups())
    for (const Tensor& param : group.params()) {
      const auto state = optimizer.state_of(param);
      now.counts.push_back(state.steps);
      for (const auto& [name, tensor] : state.tensors) moments.push_back(tensor.clone().flatten());
    }
  now.moments = moments.empty() ? torch::zeros({0}) : torch::cat(moments);
  now.counts.push_back(s.step());
  now.lr = std::as_const(optimizer).param_groups()[0].options().get_lr();
  now.scale = s.run.scaler->scale();
  now.skipped = s.step_skipped;
  return now;
}

}  // namespace

TEST_CASE("P7 P33 P36 a skipped step changes nothing but the scale", "[loop]") {
  for (const Pair pair : {Pair::scaled, Pair::fp16_mixed})
    for (const std::string how : {"gradients", "loss", "loss alone"})
      for (const bool clip : {false, true}) {
        CAPTURE(int(pair), how, clip);
        Setting setting = in_order(pair);
        setting.options.max_epochs = 2;
        if (clip) setting.options.gradient_clip = dovetail::clip_norm(0.5);
        setting.scaler = {.init = 1024, .interval = 3};
        Script script;
        script.optimizer = maker<dovetail::AdamW>(dovetail::AdamWOptions{.lr = 0.01, .weight_decay = 0.1});
        script.factor.of = [](int64_t taken) { return 1.0 / double(taken + 1); };
        int attempt = 0;
        script.loss = [&](Net& net, const Batch& batch, StepContext& step) {
          const bool bad = attempt == 0 || attempt == 3 || attempt == 4 || attempt == 11;
          ++attempt;
          const Tensor loss = mse(net, batch, step);
          if (!bad) return loss;
          if (how == "loss alone") return loss + inf;       // its gradients are finite
          return how == "loss" ? loss * inf : loss * 1e38;  // finite, until it is scaled
        };
        std::vector<Kept> seen;
        Data data;
        Watch watch;
        watch.see = [&](const std::string& hook, LoopState& s) {
          if (hook == "fit_start" || hook == "step_end") seen.push_back(kept(s));
        };
        const Result result = fit(setting, script, data, watch);
        REQUIRE(seen.size() == 13);
        CHECK(result.steps == 8);
        std::string skipped;
        std::vector<double> scales;
        int64_t taken = 0;
        for (std::size_t i = 1; i < seen.size(); ++i) {
          const Kept &before = seen[i - 1], &after = seen[i];
          skipped += after.skipped ? 's' : '.';
          scales.push_back(after.scale);
          if (!after.skipped) ++taken;
          CHECK(after.counts.back() == taken);
          CHECK(after.lr == Approx(0.01 / double(taken + 1)).epsilon(1e-12));
          if (after.skipped) CHECK(after.lr == before.lr);
          CHECK(torch::equal(after.weights, before.weights) == after.skipped);
          if (!after.skipped) continue;
          CHECK(torch::equal(after.moments, before.moments));
          CHECK(after.counts == before.counts);
        }
        CHECK(skipped == "s..ss......s");
        CHECK(scales == std::vector<double>{512, 512, 512, 256, 128, 128, 128, 256, 256, 256, 512, 256});
      }
}

TEST_CASE("skipped steps are made up for: max_steps counts taken ones", "[loop]") {
  Setting setting = in_order(Pair::scaled);
  setting.options.max_epochs = 4;
  setting.options.max_steps = 7;
  Script script;
  script.loss = [n = 0](Net& net, const Batch& batch, StepContext& step) mutable {
    return mse(net, batch, step) * (n++ % 2 == 0 ? inf : 1.0);
  };
  const Result result = fit(setting, script);
  CHECK(result.steps == 7);
  CHECK(script.steps == 14);
  CHECK(result.epochs == 3);
}

namespace {

/// What `body` writes to stderr.
std::string stderr_of(const std::function<void()>& body) {
  std::FILE* const file = std::tmpfile();
  std::fflush(stderr);
  const int before = ::dup(2);
  ::dup2(::fileno(file), 2);
  body();
  std::fflush(stderr);
  ::dup2(before, 2);
  ::close(before);
  std::rewind(file);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

}  // namespace

TEST_CASE("weights of a low format that stand still are noticed, once and by name", "[loop]") {
  const auto train = [](Pair pair, double lr, int64_t steps) {
    Setting setting = in_order(pair);
    setting.options.max_epochs = 100;
    setting.options.max_steps = steps;
    Script script;
    script.optimizer = maker<dovetail::SGD>(dovetail::SGDOptions{.lr = lr});
    return stderr_of([&] { fit(setting, script); });
  };
  for (const Pair pair : {Pair::fp16_true, Pair::apex_o3}) {
    const std::string name = pair == Pair::fp16_true ? "fp16-true" : "apex-o3";
    const std::string said = train(pair, 1e-7, 110);  // the 10th and the 100th step are looked at
    CHECK_THAT(said, Catch::Matchers::StartsWith("dovetail: warning: " + name +
                                                 " loses updates: at step 10 100 % of the elements") &&
                         Contains("in '") && Contains("' 100 %") &&
                         Catch::Matchers::EndsWith("Use MasterWeights, or a mixed precision.\n"));
    CHECK(said.find("warning") == said.rfind("warning"));
    CHECK(train(pair, 1e-7, 9) == "");
    CHECK(train(pair, 0.1, 20) == "");
  }
  CHECK(train(Pair::fp16_mixed, 1e-7, 20) == "");  // steps in fp32
}

TEST_CASE("a training_step that does the run's work is refused", "[loop]") {
  for (const bool clip : {false, true}) {
    Setting setting = in_order();
    if (clip) setting.options.gradient_clip = dovetail::clip_norm(1);
    Script script;
    script.loss = [](Net& net, const Batch& batch, StepContext& step) {
      mse(net, batch, step).backward();
      return mse(net, batch, step);
    };
    CHECK_THAT(error_of([&] { fit(setting, script); }).what(),
               Contains("the parameter 'in.weight' has a gradient before the run's own backward"));
    CHECK(script.steps == 1);
  }
  for (const bool find_unused : {false, true}) {
    Setting setting = in_order();
    setting.options.gradient_clip = dovetail::clip_norm(1);
    setting.options.find_unused = find_unused;
    Script script;
    script.loss = [](Net& net, const Batch& batch, StepContext& step) {
      net.zero_grad();
      return mse(net, batch, step);
    };
    CHECK_THAT(
        error_of([&] { fit(setting, script); }).what(),
        Contains("the gradient of the parameter 'in.weight' was taken away or replaced: leave zero_grad to the run"));
  }
}

TEST_CASE("what becomes trainable while training goes on is named", "[loop]") {
  Setting setting = in_order();
  setting.options.max_epochs = 4;
  Script script;
  script.model = [] {
    auto net = std::make_shared<Net>();
    net->out->bias.requires_grad_(false);
    return net;
  };
  script.loss = [](Net& net, const Batch& batch, StepContext& step) {
    if (step.epoch() == 1) net.out->bias.requires_grad_(true);
    return mse(net, batch, step);
  };
  const std::string said = stderr_of([&] { fit(setting, script); });
  CHECK_THAT(said, Contains("the parameter 'out.bias' requires a gradient since training began, but is not trained"));
  CHECK(said.find("warning") == said.rfind("warning"));
}

TEST_CASE("C-31 what is frozen between steps is left alone and goes on from where it was", "[loop]") {
  // By a callback, under every way in which gradients are kept.
  for (const Pair pair : {Pair::fp32, Pair::ddp, Pair::scaled, Pair::fp16_mixed, Pair::fp16_true})
    for (const bool clip : {false, true})
      for (const int64_t accumulate : {1, 2}) {
        Setting setting = in_order(pair);
        setting.options.max_epochs = 3;
        setting.options.accumulate = accumulate;
        setting.scaler.init = 16;
        if (clip) setting.options.gradient_clip = dovetail::clip_norm(0.2);
        const auto thaw = [](Net& net, int64_t step) {
          net.in->bias.requires_grad_(step < 2 || step > 4);
          net.out->weight.requires_grad_(step != 4);
        };
        Script script;
        script.optimizer = maker<dovetail::AdamW>(dovetail::AdamWOptions{.lr = 0.01, .eps = 1e-3, .weight_decay = 0.3});
        Data data;
        Watch watch;
        watch.see = [&](const std::string& hook, LoopState& state) {
          if (hook == "step_end") thaw(dynamic_cast<Net&>(*state.run.module), state.step());
        };
        const Tensor expected =
            by_hand<torch::optim::AdamW>(setting.options, torch::optim::AdamWOptions(0.01).eps(1e-3).weight_decay(0.3),
                                         false, [&](Net& net, const Batch& batch, int64_t step) {
                                           thaw(net, step);
                                           return torch::mse_loss(net.forward(batch.data), batch.target);
                                         });
        const bool low = pair == Pair::fp16_mixed || pair == Pair::fp16_true;
        INFO("pair " << int(pair) << (clip ? ", clipped" : "") << ", accumulate " << accumulate);
        CHECK(apart(weights(fit(setting, script, data, watch)), expected) < (low ? 2e-2 : 1e-6));
      }
}

TEST_CASE("what is logged is one real number", "[loop]") {
  const auto refusal = [](Tensor value) {
    Script script;
    script.loss = [value](Net& net, const Batch& batch, StepContext& step) {
      step.log("the value", value);
      return mse(net, batch, step);
    };
    return std::string(error_of([&] { fit(in_order(), script); }).what());
  };
  CHECK_THAT(refusal(torch::ones({3})), Contains("for 'the value' a tensor of 3 elements: log one real number"));
  CHECK_THAT(refusal(Tensor()), Contains("for 'the value' an undefined tensor"));
  CHECK_THAT(refusal(torch::ones({}, torch::kComplexFloat)), Contains("for 'the value' a complex number"));
}

TEST_CASE("constants with which no loss scaler works are refused", "[loop]") {
  const auto refusal = [](dovetail::ScalerOptions options) {
    const auto error = error_of([&] { dovetail::GradScaler scaler(options); });
    CHECK(error.code() == ExitCode::arguments);
    return std::string(error.what());
  };
  for (const double init : {0.0, -1.0, double(inf), std::nan("")})
    CHECK_THAT(refusal({.init = init}), Contains("scaler's init must be a finite number from 2^-16 on, but it is"));
  for (const double growth : {0.5, -2.0, double(inf), std::nan("")})
    CHECK_THAT(refusal({.growth = growth}), Contains("scaler's growth must be at least 1, but it is"));
  for (const double backoff : {0.0, 1.0, 2.0, -0.5, std::nan("")})
    CHECK_THAT(refusal({.backoff = backoff}), Contains("scaler's backoff must be between 0 and 1, but it is"));
  for (const int interval : {0, -5})
    CHECK_THAT(refusal({.interval = interval}), Contains("scaler's interval must be at least 1 step, but it is"));
}

TEST_CASE("overflow that no smaller scale can cure stops the run", "[loop]") {
  for (const Pair pair : {Pair::scaled, Pair::fp16_mixed}) {
    Setting setting = in_order(pair);
    setting.options.max_epochs = 10;
    setting.scaler.init = dovetail::GradScaler::smallest_scale * 4;
    Script script;
    script.loss = [](Net& net, const Batch& batch, StepContext& step) { return mse(net, batch, step) * inf; };
    Data data;
    Watch watch;
    int ends = 0;
    double scale = 0;
    watch.see = [&](const std::string& hook, LoopState& s) {
      ends += hook == "step_end";
      scale = s.run.scaler->scale();
    };
    const auto error = error_of([&] { fit(setting, script, data, watch); });
    CHECK(error.code() == ExitCode::numeric);
    CHECK_THAT(error.what(), Contains("overflowed at 10 steps in a row") && Contains("bf16-mixed"));
    CHECK(script.steps == 12);  // two on the way down, ten at the bottom
    CHECK(ends == 11);
    CHECK(scale == dovetail::GradScaler::smallest_scale);

    // In a row: one step that is taken between them, and the run goes on.
    script.loss = [n = 0](Net& net, const Batch& batch, StepContext& step) mutable {
      return mse(net, batch, step) * (n++ % 9 == 8 ? 1.0 : inf);
    };
    CHECK(fit(setting, script).steps == 6);  // of 60 attempts
  }
}

TEST_CASE("a loss that is not finite stops the run", "[loop]") {
  for (const Pair pair : {Pair::fp32, Pair::ddp, Pair::scaled}) {
    Script script;
    script.loss = [](Net& net, const Batch& batch, StepContext& step) {
      return mse(net, batch, step) * (step.epoch() == 1 && step.step() == 8 ? std::nan("") : 1.0);
    };
    Setting setting = in_order(pair);
    setting.options.max_epochs = 3;
    const auto error = error_of(setting, script);
    CHECK(error.code() == ExitCode::numeric);
    CHECK_THAT(error.what(), Contains("the loss is NaN at step 8 (epoch 1) on rank 0"));
  }
  for (const Pair pair : {Pair::fp32, Pair::ddp}) {
    Script script;
    script.loss = [](Net& net, const Batch& batch, StepContext& step) {
      return mse(net, batch, step) * (step.step() == 2 ? -inf : 1.0);
    };
    const auto error = error_of(in_order(pair), script);
    CHECK(error.code() == ExitCode::numeric);
    CHECK_THAT(error.what(), Contains("the loss is infinite at step 2 (epoch 0) on rank 0"));
  }
  // Anywhere in a window.
  Setting setting = in_order();
  setting.options.accumulate = 3;
  Script script;
  script.loss = [n = 0](Net& net, const Batch& batch, StepContext& step) mutable {
    return mse(net, batch, step) * (n++ == 3 ? std::nan("") : 1.0);
  };
  CHECK_THAT(error_of(setting, script).what(), Contains("the loss is NaN at step 1"));
}

TEST_CASE("T41 a loss that is none is refused", "[loop]") {
  const auto refusal = [](std::function<Tensor(Net&, const Batch&)> loss) {
    Script script;
    script.loss = [loss](Net& net, const Batch& batch, StepContext& step) {
      return step.step() < 2 ? mse(net, batch, step) : loss(net, batch);
    };
    const auto error = error_of(in_order(), script);
    CHECK(error.code() == ExitCode::user_code);
    CHECK_THAT(error.what(), Contains("training_step returned") && Contains("at step 2 on rank 0"));
    return std::string(error.what());
  };
  CHECK_THAT(refusal([](Net&, const Batch&) { return Tensor(); }), Contains("an undefined tensor"));
  CHECK_THAT(refusal([](Net& net, const Batch& batch) { return net.forward(batch.data); }),
             Contains("a tensor of 4 elements"));
  CHECK_THAT(refusal([](Net& net, const Batch&) { return net.in->weight.slice(0, 0, 0); }),
             Contains("a tensor of 0 elements"));
  const std::string detached = "depends on no parameter";
  CHECK_THAT(refusal([](Net& net, const Batch& batch) { return net.forward(batch.data).mean().detach(); }),
             Contains(detached));
  CHECK_THAT(refusal([](Net& net, const Batch& batch) {
               torch::NoGradGuard no_grad;
               return net.forward(batch.data).mean();
             }),
             Contains(detached));
  CHECK_THAT(refusal([](Net& net, const Batch& batch) { return net.forward(batch.data).mean().to(torch::kLong); }),
             Contains("a loss of dtype Long at step 2"));

  // One element in any shape is a loss.
  Script scalar, boxed;
  boxed.loss = [](Net& net, const Batch& batch, StepContext& step) { return mse(net, batch, step).view({1, 1}); };
  CHECK(torch::equal(weights(fit(in_order(), scalar)), weights(fit(in_order(), boxed))));
}

TEST_CASE("C-98 a parameter without gradient is named", "[loop]") {
  for (const Pair pair : {Pair::fp32, Pair::ddp, Pair::scaled})
    for (const bool clip : {false, true})
      for (const int64_t used_until : {0, 2}) {
        CAPTURE(int(pair), clip, used_until);
        Setting setting = in_order(pair);
        if (clip) setting.options.gradient_clip = dovetail::clip_norm(1);
        Script script;
        script.model = [] { return std::make_shared<Net>(true); };
        script.loss = [=](Net& net, const Batch& batch, StepContext& step) {
          return step.step() < used_until ? with_spare(net, batch) : mse(net, batch, step);
        };
        const auto error = error_of(setting, script);
        CHECK(error.code() == ExitCode::user_code);
        CHECK_THAT(error.what(),
                   Contains("the parameter 'spare' got no gradient at step " + std::to_string(used_until)) &&
                       Contains(".find_unused"));
        CHECK_THAT(error.what(), !Contains("on some ranks"));
      }
  // Several, and a window in which one micro-batch uses it.
  Script several;
  several.loss = [](Net& net, const Batch& batch, StepContext&) { return net.in(batch.data).square().mean(); };
  CHECK_THAT(error_of(in_order(), several).what(), Contains("the parameters 'out.weight', 'out.bias' got no gradient"));
  for (const Pair pair : {Pair::fp32, Pair::ddp, Pair::scaled}) {
    Setting setting = in_order(pair);
    setting.options.accumulate = 3;
    Script script;
    script.model = [] { return std::make_shared<Net>(true); };
    script.loss = [n = 0](Net& net, const Batch& batch, StepContext& step) mutable {
      return n++ % 3 == 1 ? with_spare(net, batch) : mse(net, batch, step);
    };
    CHECK(error_of(setting, script).code() == ExitCode::done);
  }
  // Frozen, it is nobody's business.
  Script frozen;
  frozen.model = [] {
    auto net = std::make_shared<Net>(true);
    net->spare.requires_grad_(false);
    return net;
  };
  CHECK(error_of(in_order(), frozen).code() == ExitCode::done);
}

TEST_CASE("with find_unused a parameter without gradient is left alone, and may come back", "[loop]") {
  const auto with = dovetail::AdamWOptions{.lr = 0.01, .weight_decay = 0.3};
  for (const Pair pair : {Pair::fp32, Pair::ddp, Pair::scaled})
    for (const bool clip : {false, true})
      for (const int64_t accumulate : {1, 2}) {
        CAPTURE(int(pair), clip, accumulate);
        Setting setting = in_order(pair);
        setting.options.max_epochs = 2;
        setting.options.accumulate = accumulate;
        if (clip) setting.options.gradient_clip = dovetail::clip_norm(0.2);
        Script plain;
        plain.optimizer = maker<dovetail::AdamW>(with);
        const Tensor expected = weights(fit(setting, plain));

        setting.options.find_unused = true;
        Script script = plain;
        script.model = [] { return std::make_shared<Net>(true); };
        const Tensor never = weights(fit(setting, script));
        CHECK(torch::equal(without_spare(never), expected));
        CHECK(torch::equal(spare_of(never), torch::ones({2}, torch::kFloat64)));  // no decay, too

        // Used in steps 2 and 4: what LibTorch's own optimizer does with an undefined gradient.
        const auto used = [](int64_t step) { return step == 2 || step == 4; };
        script.loss = [&](Net& net, const Batch& batch, StepContext& step) {
          return used(step.step()) ? with_spare(net, batch) : mse(net, batch, step);
        };
        const Tensor by_loop = by_hand<torch::optim::AdamW>(
            setting.options, torch::optim::AdamWOptions(with.lr).weight_decay(with.weight_decay), true,
            [&](Net& net, const Batch& batch, int64_t step) {
              return used(step) ? with_spare(net, batch) : torch::mse_loss(net.forward(batch.data), batch.target);
            });
        const Tensor sometimes = weights(fit(setting, script));
        CHECK(apart(sometimes, by_loop) < 2e-6);
        CHECK(apart(spare_of(sometimes), torch::ones({2}, torch::kFloat64)) > 1e-3);
      }
}

TEST_CASE("T46 options that no run can have are refused before anything starts", "[loop]") {
  using Change = std::function<void(Options&)>;
  const double nan = std::nan("");
  const std::vector<std::pair<std::string, Change>> cases{
      {"batch_size is 0", [](Options& o) { o.batch_size = 0; }},
      {"batch_size is -3", [](Options& o) { o.batch_size = -3; }},
      {"accumulate is 0", [](Options& o) { o.accumulate = 0; }},
      {"max_epochs is -1", [](Options& o) { o.max_epochs = -1; }},
      {"max_steps is -2", [](Options& o) { o.max_steps = -2; }},
      {"limit_train_batches is -2", [](Options& o) { o.limit_train_batches = -2; }},
      {"limit_validation_batches is -5", [](Options& o) { o.limit_validation_batches = -5; }},
      {"sanity_validation_batches is -1", [](Options& o) { o.sanity_validation_batches = -1; }},
      {"validate_every is -1", [](Options& o) { o.validate_every = -1; }},
      {"log_every is -1", [](Options& o) { o.log_every = -1; }},
      {"gradient_clip is 0", [](Options& o) { o.gradient_clip = dovetail::clip_norm(0); }},
      {"gradient_clip is -1", [](Options& o) { o.gradient_clip = dovetail::clip_value(-1); }},
      {"gradient_clip is nan", [=](Options& o) { o.gradient_clip = dovetail::clip_norm(nan); }},
      {"gradient_clip is inf", [](Options& o) { o.gradient_clip = dovetail::clip_norm(inf); }}};
  for (const auto& [text, change] : cases) {
    Setting setting;
    change(setting.options);
    Script script;
    const auto error = error_of([&] { fit(setting, script); });
    CHECK(error.code() == ExitCode::arguments);
    CHECK_THAT(error.what(), Contains(text) && Contains("it must be"));
    CHECK(script.models == 0);
  }
}

TEST_CASE("a data set without samples is refused", "[loop]") {
  for (const bool training : {true, false}) {
    Data data;
    (training ? data.train : data.validation) = Rows(0, 1);
    Script script;
    Watch watch;
    const auto error = error_of([&] { fit({}, script, data, watch); });
    CHECK(error.code() == ExitCode::data);
    CHECK_THAT(error.what(), Contains("the data set is empty"));
    CHECK(script.steps == 0);
  }
}
