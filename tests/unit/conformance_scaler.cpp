// SPDX-License-Identifier: Apache-2.0
// Rows of the conformance table: the loss scaler, by its numbers and in fits on one device.
#include <catch2/catch.hpp>

#include <limits>

#include <dovetail/policies.hpp>

#include "support/loop_run.hpp"

namespace {

using namespace loop;
using dovetail::GradScaler;
using dovetail::LoopState;

constexpr double inf = std::numeric_limits<double>::infinity();

/// The scales after each step; `overflows` has an x for each step that overflows.
std::vector<double> scales(dovetail::ScalerOptions options, const std::string& overflows) {
  GradScaler scaler(options);
  std::vector<double> seen;
  for (char step : overflows) {
    scaler.update(step == 'x');
    seen.push_back(scaler.scale());
  }
  return seen;
}

Setting in_order(Pair pair, dovetail::ScalerOptions scaler = {.init = 1024}) {
  Setting setting{.pair = pair, .scaler = scaler};
  setting.options.shuffle = false;
  setting.options.validate_every = 0;
  return setting;
}

/// A finite loss whose gradient for in.bias is infinite, or NaN.
Tensor spoiled(Net& net, const Tensor& loss, const std::string& with) {
  const Tensor zero = net.in->bias - net.in->bias.detach();
  if (with == "nan") return loss + (zero * 0).sqrt().sum();
  return loss + (with == "-inf" ? -1 : 1) * zero.sqrt().sum();
}

/// Weights and scale at the start and after each step.
struct Seen {
  std::vector<Tensor> weights;
  std::vector<double> scales, norms;
  std::vector<bool> skipped;
};

Seen watch_fit(const Setting& setting, Script& script) {
  Seen seen;
  Watch watch;
  watch.see = [&](const std::string& hook, LoopState& s) {
    if (hook != "fit_start" && hook != "step_end") return;
    seen.weights.push_back(flat(*s.run.module));
    if (s.run.scaler) seen.scales.push_back(s.run.scaler->scale());
    if (hook == "fit_start") return;
    seen.norms.push_back(s.gradient_norm);
    seen.skipped.push_back(s.step_skipped);
  };
  Data data;
  fit(setting, script, data, watch);
  return seen;
}

}  // namespace

TEST_CASE("P7 P18 P43 P45 scales follow growth, backoff and the count of good steps", "[conformance]") {
  CHECK(scales({.init = 256, .interval = 2}, "......") == std::vector<double>{256, 512, 512, 1024, 1024, 2048});
  CHECK(scales({.init = 256, .interval = 1}, "...") == std::vector<double>{512, 1024, 2048});
  CHECK(scales({.init = 256, .interval = 3}, "..x...x..") ==
        std::vector<double>{256, 256, 128, 128, 128, 256, 128, 128, 128});
  CHECK(scales({.init = 1024, .growth = 4, .backoff = 0.25, .interval = 2}, "x..xx..") ==
        std::vector<double>{256, 256, 1024, 256, 64, 64, 256});
  for (int k = 0; k <= 8; ++k) {
    GradScaler scaler({.init = 65536, .interval = 2});
    scaler.update(false);
    for (int i = 0; i < k; ++i) scaler.update(true);
    CHECK(scaler.scale() == 65536 / std::pow(2.0, k));
    scaler.update(false);
    CHECK(scaler.scale() == 65536 / std::pow(2.0, k) * (k == 0 ? 2 : 1));  // the count began anew
  }
}

TEST_CASE("P19 P44 the scale stays finite and above its floor", "[conformance]") {
  GradScaler up({.init = 0x1p120, .interval = 1}), down({.init = 1});
  for (int i = 0; i < 20; ++i) up.update(false);
  CHECK(up.scale() == GradScaler::largest_scale);
  CHECK(std::isfinite(float(up.scale())));
  for (int i = 0; i < 40; ++i) down.update(true);
  CHECK(down.scale() == GradScaler::smallest_scale);
  CHECK(down.skipped_at_smallest() == 24);  // sixteen on the way down
  CHECK(float(1 / down.scale()) == 65536);
}

TEST_CASE("P44 P47 inf, -inf and NaN are one overflow each; a growth of 1 is a scale that never rises",
          "[conformance]") {
  for (const Pair pair : {Pair::scaled, Pair::fp16_mixed})
    for (const std::string with : {"inf", "-inf", "nan"}) {
      CAPTURE(int(pair), with);
      Script script;
      script.loss = [&, n = 0](Net& net, const Batch& batch, StepContext& step) mutable {
        const Tensor loss = mse(net, batch, step);
        return n++ % 2 == 1 ? spoiled(net, loss, with) : loss;
      };
      const Seen seen = watch_fit(in_order(pair, {.init = 64, .growth = 1, .interval = 1}), script);
      CHECK(seen.scales == std::vector<double>{64, 64, 32, 32, 16, 16, 8});
      for (std::size_t i = 0; i < 6; ++i) {
        CHECK(seen.skipped[i] == (i % 2 == 1));
        CHECK(torch::equal(seen.weights[i], seen.weights[i + 1]) == (i % 2 == 1));
      }
    }
}

TEST_CASE("P22 a scaled run with one overflow equals the plain run without that batch", "[conformance]") {
  for (const bool ours : {true, false}) {
    Script script;
    if (ours)
      script.optimizer = maker<dovetail::AdamW>(dovetail::AdamWOptions{.lr = 0.01});
    else
      script.optimizer = [](const Parameters& p) -> AnyOptimizer {
        return std::make_unique<torch::optim::AdamW>(p.tensors(), torch::optim::AdamWOptions(0.01));
      };
    script.loss = [n = 0](Net& net, const Batch& batch, StepContext& step) mutable {
      const Tensor loss = mse(net, batch, step);
      return n++ == 2 ? spoiled(net, loss, "inf") : loss;
    };
    Setting setting = in_order(Pair::scaled, {.init = 1024, .interval = 1});
    setting.options.limit_train_batches = 4;
    const Seen seen = watch_fit(setting, script);
    CHECK(seen.scales.back() == 1024 * std::pow(2.0, 3) * 0.5);

    torch::manual_seed(setting.options.seed);
    Net net;
    torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(0.01));
    const Data data;
    for (const int64_t batch : {0, 1, 3}) {
      optimizer.zero_grad();
      torch::mse_loss(net.forward(data.train.x.slice(0, 4 * batch, 4 * batch + 4)),
                      data.train.y.slice(0, 4 * batch, 4 * batch + 4))
          .backward();
      optimizer.step();
    }
    CHECK(apart(seen.weights.back(), flat(net)) < 1e-6);
  }
}

TEST_CASE("P25 a gradient penalty under the scaler, and one scale for a whole window", "[conformance]") {
  Script script;
  std::vector<double> at_forward;
  script.loss = [&](Net& net, const Batch& batch, StepContext& step) {
    const Tensor loss = mse(net, batch, step);
    const auto gradients = torch::autograd::grad({loss}, net.parameters(), {}, true, true);
    Tensor penalty = torch::zeros({});
    for (const Tensor& gradient : gradients) penalty = penalty + gradient.square().sum();
    return loss + penalty;
  };
  Setting setting = in_order(Pair::fp32);
  setting.options.accumulate = 3;
  const Tensor plain = watch_fit(setting, script).weights.back();
  setting.pair = Pair::scaled;
  setting.scaler = {.init = 4096, .interval = 1};
  const Seen scaled = watch_fit(setting, script);
  CHECK(apart(scaled.weights.back(), plain) < 1e-6);
  CHECK(scaled.scales == std::vector<double>{4096, 8192, 16384});  // two windows of three micro-batches
}

TEST_CASE("P26 T39 fused and plain optimizers agree under the scaler, with clipping and without", "[conformance]") {
  for (const Pair pair : {Pair::scaled, Pair::fp16_mixed})
    for (const bool clip : {false, true}) {
      CAPTURE(int(pair), clip);
      Setting setting = in_order(pair);
      setting.options.max_epochs = 3;
      if (clip) setting.options.gradient_clip = dovetail::clip_norm(0.3);
      const auto train = [&](std::function<AnyOptimizer(const Parameters&)> optimizer) {
        Script script;
        script.optimizer = std::move(optimizer);
        return watch_fit(setting, script).weights.back();
      };
      const Tensor fused = train(maker<dovetail::Adam>(dovetail::AdamOptions{.lr = 0.01}));
      const Tensor plain = train([](const Parameters& p) -> AnyOptimizer {
        return std::make_unique<torch::optim::Adam>(p.tensors(), torch::optim::AdamOptions(0.01));
      });
      CHECK(apart(fused, plain) < (pair == Pair::scaled ? 2e-6 : 1e-3));
      CHECK(apart(train(maker<dovetail::SGD>(dovetail::SGDOptions{.lr = 0.05, .momentum = 0.9})),
                  train([](const Parameters& p) -> AnyOptimizer {
                    return std::make_unique<torch::optim::SGD>(p.tensors(),
                                                               torch::optim::SGDOptions(0.05).momentum(0.9));
                  })) < (pair == Pair::scaled ? 2e-6 : 1e-3));
    }
}

TEST_CASE("P69 B043 an overflow in one of four micro-batches drops the window, once", "[conformance]") {
  for (const std::string with : {"inf", "nan"})
    for (const int bad : {0, 1, 3}) {
      CAPTURE(with, bad);
      Setting setting = in_order(Pair::scaled, {.init = 256, .interval = 2});
      setting.options.max_epochs = 4;
      setting.options.accumulate = 4;
      setting.options.limit_train_batches = 4;
      setting.options.gradient_clip = dovetail::clip_norm(10);
      Script script;
      script.loss = [&, n = 0](Net& net, const Batch& batch, StepContext& step) mutable {
        const Tensor loss = mse(net, batch, step);
        return n++ == 4 + bad ? spoiled(net, loss, with) : loss;  // in the second of four windows
      };
      const Seen seen = watch_fit(setting, script);
      CHECK(seen.skipped == std::vector<bool>{false, true, false, false});
      // One update of the scale for each window: the skipped one takes the count back to nothing.
      CHECK(seen.scales == std::vector<double>{256, 256, 128, 128, 256});
      CHECK(torch::equal(seen.weights[1], seen.weights[2]));

      // Nothing of the spoiled window is left in the gradients: the other three do what a run of three windows does.
      setting.options.max_epochs = 3;
      Script clean;
      CHECK(torch::equal(seen.weights.back(), watch_fit(setting, clean).weights.back()));
    }
}

TEST_CASE("P64 two optimizers that overflow at once skip both, and the scale backs off once", "[conformance]") {
  struct Halves {
    std::function<Tensor(Net&, const Batch&, StepContext&)> loss;
    auto configure_model() { return std::make_shared<Net>(); }
    auto configure_optimizers(const Parameters& p) {
      const auto inner = [](const std::string& name) { return name.starts_with("in."); };
      return std::tuple(dovetail::SGD(p.where(inner), {.lr = 0.1}), dovetail::SGD(p.where_not(inner), {.lr = 0.1}));
    }
    Tensor training_step(Net& net, const Batch& batch, StepContext& step) { return loss(net, batch, step); }
  } task;
  task.loss = [n = 0](Net& net, const Batch& batch, StepContext& step) mutable {
    Tensor loss = mse(net, batch, step);
    if (n++ == 2)
      for (const Tensor& bias : {net.in->bias, net.out->bias}) loss = loss + (bias - bias.detach()).sqrt().sum();
    return loss;
  };
  std::vector<Tensor> seen;
  std::vector<double> all_scales;
  Watch watch;
  watch.see = [&](const std::string& hook, LoopState& s) {
    if (hook != "fit_start" && hook != "step_end") return;
    seen.push_back(flat(*s.run.module));
    all_scales.push_back(s.run.scaler->scale());
  };
  auto options = in_order(Pair::scaled).options;
  Data data;
  dovetail::Trainer<dovetail::SingleDevice, Scaled> trainer(options, {}, Scaled({.init = 64}));
  const auto result = trainer.fit(task, data, watch);
  CHECK(result.steps == 5);
  CHECK(all_scales == std::vector<double>{64, 64, 64, 32, 32, 32, 32});
  for (std::size_t i = 0; i < 6; ++i) CHECK(torch::equal(seen[i], seen[i + 1]) == (i == 2));
}

TEST_CASE("P49 T38 B015 of two optimizers one gets no gradient at some steps", "[conformance]") {
  struct Branches : torch::nn::Module {
    torch::nn::Linear a = register_module("a", torch::nn::Linear(3, 1)),
                      b = register_module("b", torch::nn::Linear(3, 1));
  };
  struct Alternating {
    auto configure_model() { return std::make_shared<Branches>(); }
    auto configure_optimizers(const Parameters& p) {
      const auto first = [](const std::string& name) { return name.starts_with("a."); };
      return std::tuple(dovetail::SGD(p.where(first), {.lr = 0.1, .momentum = 0.9}),
                        dovetail::SGD(p.where_not(first), {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}));
    }
    Tensor training_step(Branches& net, const Batch& batch, StepContext& step) {
      Tensor out = net.a(batch.data);
      if (step.step() % 2 == 0) out = out + net.b(batch.data);
      return torch::mse_loss(out, batch.target);
    }
  };
  auto options = in_order(Pair::scaled).options;
  options.find_unused = true;
  options.max_epochs = 2;
  const auto train = [&](auto trainer) {
    std::vector<Tensor> seen;
    std::vector<double> all_scales;
    Watch watch;
    watch.see = [&](const std::string& hook, LoopState& s) {
      if (hook != "fit_start" && hook != "step_end") return;
      seen.push_back(flat(*s.run.module));
      if (s.run.scaler) all_scales.push_back(s.run.scaler->scale());
    };
    Data data;
    Alternating task;
    CHECK(trainer.fit(task, data, watch).steps == 12);
    for (std::size_t i = 0; i < 12; ++i) {
      CHECK(torch::equal(seen[i].slice(0, 4), seen[i + 1].slice(0, 4)) == (i % 2 == 1));  // b
      CHECK_FALSE(torch::equal(seen[i].slice(0, 0, 4), seen[i + 1].slice(0, 0, 4)));      // a
    }
    for (std::size_t i = 1; i < all_scales.size(); ++i)
      CHECK(all_scales[i] == 64 * std::pow(2.0, double(i / 3)));  // once per step, taken by one optimizer or by two
    return seen.back();
  };
  using dovetail::SingleDevice;
  const Tensor scaled =
      train(dovetail::Trainer<SingleDevice, Scaled>(options, {}, Scaled({.init = 64, .interval = 3})));
  CHECK(apart(scaled, train(dovetail::Trainer<SingleDevice, dovetail::FP32>(options))) < 1e-6);
}

TEST_CASE("P48 norms that are seen are unscaled, with accumulation too", "[conformance]") {
  for (const int64_t accumulate : {1, 2}) {
    Setting setting = in_order(Pair::fp32);
    setting.options.accumulate = accumulate;
    setting.options.gradient_clip = dovetail::clip_norm(0.5);
    Script script;
    const Seen plain = watch_fit(setting, script);
    setting.pair = Pair::scaled;
    const Seen scaled = watch_fit(setting, script);
    REQUIRE(plain.norms.size() == std::size_t(6 / accumulate));
    for (std::size_t i = 0; i < plain.norms.size(); ++i) {
      CHECK(plain.norms[i] > 0.1);
      CHECK(scaled.norms[i] == Approx(plain.norms[i]).epsilon(1e-6));
    }
  }
}

TEST_CASE("B033 a huge or infinite norm spoils nothing", "[conformance]") {
  // 1e20: its square is no fp32 number.
  Setting setting = in_order(Pair::fp32);
  setting.options.gradient_clip = dovetail::clip_norm(0.01);
  Script huge;
  huge.optimizer = maker<dovetail::SGD>(dovetail::SGDOptions{.lr = 1});
  huge.loss = [](Net& net, const Batch& batch, StepContext& step) { return mse(net, batch, step) * 1e20; };
  const Seen seen = watch_fit(setting, huge);
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(seen.norms[i] > 1e18);
    CHECK((seen.weights[i + 1] - seen.weights[i]).norm().item<double>() == Approx(0.01).epsilon(1e-3));
  }
  // Infinite, and NaN: no scaler would cure it, so the step is left out.
  for (const std::string with : {"inf", "nan"}) {
    Script script;
    script.loss = [&, n = 0](Net& net, const Batch& batch, StepContext& step) mutable {
      const Tensor loss = mse(net, batch, step);
      return n++ == 2 ? spoiled(net, loss, with) : loss;
    };
    const Seen skipped = watch_fit(setting, script);
    for (std::size_t i = 0; i < 6; ++i) {
      CHECK(torch::equal(skipped.weights[i], skipped.weights[i + 1]) == (i == 2));
      CHECK(torch::isfinite(skipped.weights[i + 1]).all().item<bool>());
    }
  }
}

TEST_CASE("P13 P17 what is not finite is found anywhere, in any layout, and divided where it lies", "[conformance]") {
  torch::manual_seed(3);
  for (const auto dtype : {torch::kFloat32, torch::kFloat64, torch::kBFloat16, torch::kHalf})
    for (const int64_t size : {1, 2, 31, 32, 33, 1023, 4096, 4097, 16384, 20001, 70001})
      for (const double bad : {inf, -inf, std::nan("")}) {
        const Tensor x = torch::randn({size}).to(dtype);
        CHECK(std::isfinite(dovetail::squared_norm(x)));
        for (const int64_t at : {int64_t(0), size / 2, size - 1}) {
          const Tensor spoilt = x.clone();
          spoilt[at].fill_(bad);
          if (std::isfinite(dovetail::squared_norm(spoilt))) FAIL("not found at " << at << " of " << size);
        }
      }
  const Tensor whole = torch::randn({6, 8}) * 4;
  for (const Tensor& gradient :
       {whole, whole.t(), whole.slice(1, 1, 6), whole.slice(0, 0, 6, 2), whole.expand({2, 6, 8})}) {
    const double expected = gradient.to(torch::kFloat64).square().sum().item<double>();
    CHECK(dovetail::squared_norm(gradient) == Approx(expected).epsilon(1e-6));
    for (const double bad : {inf, std::nan("")}) {
      const Tensor spoilt = gradient.contiguous().clone();
      spoilt.view({-1})[spoilt.numel() - 1].fill_(bad);
      CHECK_FALSE(std::isfinite(dovetail::squared_norm(spoilt.transpose(0, -1))));
    }
    if (gradient.dim() != 2) continue;
    Tensor parameter = torch::zeros(gradient.sizes()).requires_grad_(true);
    parameter.mutable_grad() = gradient.clone();  // of the same strides; it is divided where it lies
    dovetail::SGD(Parameters({{"p", parameter.sizes().vec(), parameter}}), {.lr = 1}).step(4.0);
    CHECK(torch::allclose(parameter.detach(), gradient * -0.25));
  }
}
