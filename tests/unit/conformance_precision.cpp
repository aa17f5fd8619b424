// SPDX-License-Identifier: Apache-2.0
// Rows of the conformance table: number formats, masters and autocast, on one device.
#include <catch2/catch.hpp>

#include <dovetail/precision/autocast_guard.hpp>
#include <dovetail/precision/convert.hpp>

#include <torch/optim.h>
#include <torch/utils.h>

#include "support/conformance_job.hpp"

namespace {

using namespace conformance;
using dt::AutocastGuard;
using torch::kBFloat16, torch::kFloat32, torch::kFloat64, torch::kHalf;

template <class P, class Task, class Data>
Outcome fit_alone(const dt::TrainerOptions& options, Task& task, const Data& data, Watch watch = {}, P precision = {}) {
  return fit<dt::SingleDevice, P>(options, task, data, std::move(watch), {}, precision);
}

/// One weight w = 1, whose gradient is 1 for every sample.
struct One : torch::nn::Module {
  Tensor w = register_parameter("w", torch::ones({1}));
};
Job<One> pushing(double lr) {
  Job<One> job;
  job.optimizer = maker<dt::SGD>(dt::SGDOptions{.lr = lr});
  job.loss = [](One& net, const dt::Batch&, dt::StepContext&) { return net.w.to(kFloat32).sum(); };
  return job;
}

}  // namespace

TEST_CASE("P32 P56 T31 a guard gives back what was there, also after an exception", "[conformance]") {
  const auto now = [] {
    return std::tuple(at::autocast::is_autocast_enabled(at::kCPU), at::autocast::get_autocast_dtype(at::kCPU),
                      at::autocast::is_autocast_cache_enabled(), torch::get_default_dtype());
  };
  const auto before = now();
  CHECK(std::get<1>(before) == kBFloat16);  // LibTorch's default on the CPU
  CHECK_FALSE(std::get<0>(before));
  {
    const AutocastGuard outer(at::kCPU, kHalf);
    CHECK(now() == std::tuple(true, kHalf, true, torch::get_default_dtype()));
    {
      const AutocastGuard inner(at::kCPU, kBFloat16);
      CHECK(at::autocast::get_autocast_dtype(at::kCPU) == kBFloat16);
    }
    CHECK(at::autocast::get_autocast_dtype(at::kCPU) == kHalf);
    const AutocastGuard nothing(at::kCPU, std::nullopt);
    CHECK(at::autocast::get_autocast_dtype(at::kCPU) == kHalf);
  }
  CHECK(now() == before);
  at::autocast::set_autocast_cache_enabled(false);
  { const AutocastGuard guard(at::kCPU, kHalf); }
  CHECK_FALSE(at::autocast::is_autocast_cache_enabled());
  at::autocast::set_autocast_cache_enabled(true);

  Job<> job;
  job.loss = [](Net&, const dt::Batch&, dt::StepContext&) -> Tensor { throw std::logic_error("not today"); };
  CHECK_THROWS_WITH(fit_alone<dt::BF16Mixed>(quiet(), job, rows()), "not today");
  CHECK(now() == before);
  CHECK_THROWS_WITH(fit_alone<dt::FP16Mixed>(quiet(), job, rows()), "not today");
  CHECK_THROWS_WITH(fit_alone<dt::FP64>(quiet(), job, rows()), "not today");
  CHECK_THROWS_WITH(fit_alone<dt::BF16True>(quiet(), job, rows()), "not today");
  CHECK(now() == before);
}

TEST_CASE("P29 P30 P62 B100 a weight is cast once in a region, and never outlives it", "[conformance]") {
  torch::manual_seed(1);
  Tensor weight = torch::randn({4, 3}).requires_grad_(true);
  const auto cast = [&] { return at::autocast::cached_cast(kBFloat16, weight, c10::DeviceType::CPU); };
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> left;
  {
    const AutocastGuard guard(at::kCPU, kBFloat16);
    const Tensor first = cast();
    CHECK(first.scalar_type() == kBFloat16);
    CHECK(cast().is_same(first));
    {
      const AutocastGuard inner(at::kCPU, kBFloat16);
      CHECK(cast().is_same(first));
    }
    CHECK(cast().is_same(first));  // leaving an inner region clears nothing
    left.push_back(first.storage().getWeakStorageImpl());
    at::autocast::set_autocast_cache_enabled(false);
    CHECK_FALSE(cast().is_same(first));
    at::autocast::set_autocast_cache_enabled(true);
  }
  CHECK(left.front().expired());  // the cache holds nothing any more

  // A step between two regions: the second one sees it.
  const Tensor x = torch::randn({2, 3});
  const auto forward = [&] {
    const AutocastGuard guard(at::kCPU, kBFloat16);
    return at::linear(x, weight);
  };
  const Tensor before = forward();
  {
    torch::NoGradGuard no_grad;
    weight.mul_(2);
  }
  CHECK(torch::equal(forward(), before * 2));
}

TEST_CASE("P55 P63 B025 a forward without gradients first, then one with, in one region", "[conformance]") {
  torch::manual_seed(1);
  torch::nn::Linear linear(6, 4);
  const Tensor x = torch::randn({3, 6}), batched = torch::randn({2, 3, 6});
  for (const auto dtype : {kBFloat16, kHalf})
    for (const Tensor& input : {x, batched}) {
      const auto gradients = [&](bool evaluates_first) {
        linear->zero_grad();
        const AutocastGuard guard(at::kCPU, dtype);
        if (evaluates_first) {
          torch::NoGradGuard no_grad;
          CHECK_FALSE(linear(input).requires_grad());
        }
        linear(input).to(kFloat32).square().sum().backward();
        REQUIRE(linear->weight.grad().defined());
        REQUIRE(linear->bias.grad().defined());
        CHECK(linear->weight.grad().abs().max().item<double>() > 0);
        return std::pair(linear->weight.grad().clone(), linear->bias.grad().clone());
      };
      const auto [weight, bias] = gradients(true);
      const auto [plain_weight, plain_bias] = gradients(false);
      CHECK(torch::equal(weight, plain_weight));
      CHECK(torch::equal(bias, plain_bias));
      linear->zero_grad();
      linear(input).square().sum().backward();
      CHECK(torch::allclose(weight, linear->weight.grad(), 2e-2, 2e-1));
    }
  // In a fit, where the region is the trainer's.
  Job<> plain, evaluates;
  evaluates.loss = [&](Net& net, const dt::Batch& batch, dt::StepContext&) {
    {
      torch::NoGradGuard no_grad;
      net.forward(batch.data);
    }
    return mse(net.forward(batch.data), batch.target);
  };
  CHECK(torch::equal(fit_alone<dt::BF16Mixed>(quiet(), evaluates, rows()).weights,
                     fit_alone<dt::BF16Mixed>(quiet(), plain, rows()).weights));
}

TEST_CASE("P9 training, evaluation, training: evaluations leave no trace", "[conformance]") {
  const dt::SplitData data(rows(), rows(10, 2));
  Job<> job;
  job.loss = [](Net& net, const dt::Batch& batch, dt::StepContext&) {
    const Tensor hidden = torch::tanh(net.in(batch.data));                   // low
    const Tensor joined = torch::cat({hidden, hidden.to(kFloat32)}, 1);      // promoted
    const Tensor soft = torch::softmax(net.out(joined.slice(1, 0, 7)), -1);  // as it is given
    return mse(soft * net.scale, batch.target);
  };
  const auto train = [&](auto precision, bool validates) {
    auto options = quiet(3);
    if (validates) {
      options.validate_every = 1;
      options.sanity_validation_batches = 2;
    }
    return fit_alone<decltype(precision)>(options, job, data, {}, precision).weights;
  };
  CHECK(torch::equal(train(dt::BF16Mixed{}, true), train(dt::BF16Mixed{}, false)));
  CHECK(torch::equal(train(dt::FP16Mixed{}, true), train(dt::FP16Mixed{}, false)));
}

TEST_CASE("P10 P31 operators under autocast equal those with operands cast by hand, bit for bit", "[conformance]") {
  torch::manual_seed(2);
  const Tensor x = torch::randn({4, 6}), w = torch::randn({5, 6}), b = torch::randn({5}), m = torch::randn({6, 5});
  const Tensor image = torch::randn({2, 3, 8, 8}), kernel = torch::randn({4, 3, 3, 3}), stack = torch::randn({2, 4, 6});
  const Tensor target = torch::randn({4, 6}), classes = torch::tensor({0, 2, 1, 5});
  using Operator = std::function<Tensor(const std::function<Tensor(const Tensor&)>&)>;
  const std::vector<std::pair<const char*, Operator>> low{
      {"linear", [&](auto c) { return at::linear(c(x), c(w), c(b)); }},
      {"mm", [&](auto c) { return at::mm(c(x), c(m)); }},
      {"matmul", [&](auto c) { return at::matmul(c(stack), c(m)); }},
      {"addmm", [&](auto c) { return at::addmm(c(b), c(x), c(m)); }},
      {"bmm", [&](auto c) { return at::bmm(c(stack), c(stack.transpose(1, 2))); }},
      {"baddbmm",
       [&](auto c) {
         return at::baddbmm(c(torch::zeros({2, 4, 4})), c(stack), c(stack.transpose(1, 2)));
       }},
      {"conv2d", [&](auto c) { return at::conv2d(c(image), c(kernel)); }},
      {"attention", [&](auto c) { return at::scaled_dot_product_attention(c(stack), c(stack), c(stack)); }}};
  const std::vector<std::pair<const char*, Operator>> full{
      {"mse_loss", [&](auto c) { return at::mse_loss(c(x), c(target)); }},
      {"l1_loss", [&](auto c) { return at::l1_loss(c(x), c(target)); }},
      {"huber_loss", [&](auto c) { return at::huber_loss(c(x), c(target)); }},
      {"cross_entropy", [&](auto c) { return at::cross_entropy_loss(c(x), classes); }},
      {"prod", [&](auto c) { return at::prod(c(x), 1); }},
      {"cdist", [&](auto c) { return at::cdist(c(x), c(target)); }}};
  const auto as_it_is = [](const Tensor& t) { return t; };
  for (const auto dtype : {kBFloat16, kHalf}) {
    const auto rounded = [&](const Tensor& t) { return t.to(dtype); };
    const auto widened = [&](const Tensor& t) { return t.to(dtype).to(kFloat32); };
    const auto under = [&](const Operator& op, const auto& cast) {
      const AutocastGuard guard(at::kCPU, dtype);
      return op(cast);
    };
    for (const auto& [name, op] : low) {
      INFO(name);
      CHECK(under(op, as_it_is).scalar_type() == dtype);
      CHECK(torch::equal(under(op, as_it_is), op(rounded)));
    }
    for (const auto& [name, op] : full) {
      INFO(name);
      CHECK(under(op, rounded).scalar_type() == kFloat32);
      CHECK(torch::equal(under(op, rounded), op(widened)));
    }
    // Batch norm works in the format that it is given; its statistics stay in fp32.
    torch::nn::BatchNorm1d norm(6);
    const AutocastGuard guard(at::kCPU, dtype);
    CHECK(norm(x).scalar_type() == kFloat32);
    CHECK(norm(x.to(dtype)).scalar_type() == dtype);
    CHECK(norm->running_mean.scalar_type() == kFloat32);
  }
}

TEST_CASE("P12 mixed operands are promoted to the widest, in place the first one's format stays", "[conformance]") {
  const Tensor wide = torch::full({3}, 1.001f);
  for (const auto dtype : {kBFloat16, kHalf}) {
    const AutocastGuard guard(at::kCPU, dtype);
    const Tensor low = torch::ones({3}, dtype);
    CHECK(torch::equal(low * wide, wide));
    CHECK(torch::equal(torch::cat({low, wide}), torch::cat({low.to(kFloat32), wide})));
    CHECK(torch::stack({wide, low}).scalar_type() == kFloat32);
    Tensor low_sum = low.clone(), wide_sum = wide.clone();
    low_sum.add_(wide);
    wide_sum.add_(low);
    CHECK(low_sum.scalar_type() == dtype);
    CHECK(torch::equal(low_sum, (low.to(kFloat32) + wide).to(dtype)));
    CHECK(torch::equal(wide_sum, wide + 1));
  }
}

TEST_CASE("T33 weights and gradients are fp32, what is computed inside is not", "[conformance]") {
  const auto look = [](auto precision, torch::ScalarType low) {
    Job<> job;
    int looked = 0;
    job.loss = [&](Net& net, const dt::Batch& batch, dt::StepContext&) {
      CHECK(batch.data.scalar_type() == kFloat32);
      CHECK(net.in->weight.scalar_type() == kFloat32);
      CHECK(net.in(batch.data).scalar_type() == low);
      ++looked;
      return mse(net.forward(batch.data), batch.target);
    };
    Watch watch;
    watch.step = [&](dt::LoopState& state) {
      for (const dt::Slot& slot : state.run.gradients.slots) {
        CHECK(slot.stepped.scalar_type() == kFloat32);
        if (slot.stepped.grad().defined()) CHECK(slot.stepped.grad().scalar_type() == kFloat32);
      }
    };
    fit_alone<decltype(precision)>(quiet(1), job, rows(), watch, precision);
    CHECK(looked == 6);
  };
  look(dt::BF16Mixed{}, kBFloat16);
  look(dt::FP16Mixed{{.init = 64}}, kHalf);
}

namespace {

/// Looks at the first training step and at the state after it.
struct Expected {
  torch::ScalarType stored, stepped;
};

template <class S, class P>
void check_wraps(Expected expected) {
  INFO(S::name << " x " << P::name);
  Job<> job;
  torch::ScalarType weight = kFloat64, bias = kFloat64, input = kFloat64;
  int64_t forwards = 0;
  job.loss = [&](Net& net, const dt::Batch& batch, dt::StepContext&) {
    if (forwards++ == 0) {
      weight = net.in->weight.scalar_type();
      bias = net.out->bias.scalar_type();
      input = batch.data.scalar_type();
    }
    return mse(net.forward(batch.data), batch.target);
  };
  Watch watch;
  int64_t optimizers = 0, masters = 0, steps = 0;
  watch.start = [&](dt::LoopState& state) { optimizers = int64_t(state.run.optimizers.size()); };
  watch.step = [&](dt::LoopState& state) {
    if (++steps > 1) return;
    for (const dt::Slot& slot : state.run.gradients.slots) {
      CHECK(slot.stepped.scalar_type() == expected.stepped);
      const bool is_master = !slot.stepped.is_same(slot.held);
      masters += is_master;
      if (is_master) CHECK(torch::equal(slot.held.detach(), slot.stepped.detach().to(slot.held.scalar_type())));
    }
    // The optimizer steps the masters, not the model.
    for (const auto& group : std::as_const(state.run.optimizers[0].base()).param_groups())
      for (const Tensor& tensor : group.params()) CHECK(tensor.scalar_type() == expected.stepped);
  };
  const Outcome outcome = fit<S, P>(quiet(1), job, rows(), watch);
  CHECK(optimizers == 1);
  CHECK(weight == expected.stored);
  CHECK(bias == expected.stored);
  CHECK(input == expected.stored);
  CHECK(masters == (expected.stored == expected.stepped ? 0 : 5));
  CHECK(outcome.steps > 0);
}

template <class P>
void check_wraps_everywhere(Expected expected) {
  check_wraps<dt::SingleDevice, P>(expected);
  check_wraps<dt::DDP, P>(expected);
  if constexpr (dt::compatible<dt::FSDP, P>) {
    check_wraps<dt::Sharded<1>, P>(expected);
    check_wraps<dt::Sharded<2>, P>(expected);
    check_wraps<dt::FSDP, P>(expected);
  }
}

}  // namespace

TEST_CASE("T23 P51 P52 a precision that wraps optimizers is in effect at the first step, for every strategy",
          "[conformance]") {
  check_wraps_everywhere<dt::Apex<dt::O0>>({kFloat32, kFloat32});
  check_wraps_everywhere<dt::Apex<dt::O1>>({kFloat32, kFloat32});
  check_wraps_everywhere<dt::Apex<dt::O2>>({kHalf, kFloat32});
  check_wraps_everywhere<dt::Apex<dt::O3>>({kHalf, kHalf});
  check_wraps_everywhere<dt::MasterWeights<dt::BF16>>({kBFloat16, kFloat32});
  check_wraps_everywhere<dt::MasterWeights<dt::FP16>>({kHalf, kFloat32});
}

TEST_CASE("P57 T17 B020 conversion reaches every floating parameter and buffer, and nothing else", "[conformance]") {
  struct Inner : torch::nn::Module {
    torch::nn::Linear linear = register_module("linear", torch::nn::Linear(3, 4));
    torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
  };
  struct Many : torch::nn::Module {
    std::shared_ptr<Inner> inner = register_module("inner", std::make_shared<Inner>());
    Tensor scalar = register_parameter("scalar", torch::ones({}));
    Tensor table = register_buffer("table", torch::randn({3}));
    Tensor count = register_buffer("count", torch::arange(3));
    Tensor wave = register_buffer("wave", torch::complex(torch::ones({2}), torch::full({2}, 0.1f)));
  };
  for (const auto dtype : {kFloat64, kHalf, kBFloat16})
    for (const bool spares : {false, true}) {
      const auto net = std::make_shared<Many>();
      const auto impls = [&] {
        std::vector<c10::TensorImpl*> all;
        for (const Tensor& parameter : net->parameters()) all.push_back(parameter.unsafeGetTensorImpl());
        return all;
      };
      const auto before = impls();
      dt::convert_model(*net, dtype, spares);
      CHECK(impls() == before);  // an optimizer that holds them goes on
      for (const auto& item : net->named_parameters()) {
        INFO(item.key());
        CHECK(item.value().scalar_type() == (spares && item.key().starts_with("inner.norm.") ? kFloat32 : dtype));
        CHECK(item.value().requires_grad());
      }
      CHECK(net->table.scalar_type() == dtype);
      CHECK(net->inner->norm->running_var.scalar_type() == (spares ? kFloat32 : dtype));
      CHECK(net->count.scalar_type() == torch::kLong);
      CHECK(net->wave.is_complex());
      CHECK(torch::imag(net->wave).to(kFloat32).sub(0.1f).abs().max().item<float>() == 0);
    }
  // And in a fit.
  Job<> job;
  job.loss = [](Net& net, const dt::Batch& batch, dt::StepContext&) {
    CHECK(net.scale.scalar_type() == kFloat64);
    CHECK(batch.data.scalar_type() == kFloat64);
    CHECK(net.forward(batch.data).scalar_type() == kFloat64);
    return mse(net.forward(batch.data), batch.target);
  };
  fit_alone<dt::FP64>(quiet(1), job, rows());
}

TEST_CASE("B021 a float64 buffer keeps its digits", "[conformance]") {
  struct Counting : Net {
    Tensor count = register_buffer("count", torch::full({1}, 16777217.0, kFloat64));
    Tensor mean = register_buffer("mean", torch::zeros({1}));
  };
  Job<Counting> job;
  job.loss = [](Counting& net, const dt::Batch& batch, dt::StepContext&) {
    net.count.add_(1);
    return mse(net.forward(batch.data), batch.target);
  };
  const auto train = [&](auto strategy, auto precision, torch::ScalarType stored) {
    const auto net =
        dt::Trainer<decltype(strategy), decltype(precision)>(quiet(1), strategy, precision).fit(job, rows(8)).model;
    CHECK(net->mean.scalar_type() == stored);
    CHECK(net->count.scalar_type() == kFloat64);
    CHECK(net->count.template item<double>() == 16777219.0);
  };
  train(dt::SingleDevice{}, dt::BF16True{}, kBFloat16);
  train(dt::SingleDevice{}, dt::MasterWeights<dt::FP16>{{.init = 64}}, kHalf);
  train(dt::DDP{}, dt::Apex<dt::O2>{{.init = 64}}, kHalf);
  train(dt::FSDP{}, dt::BF16Mixed{}, kFloat32);
  train(dt::SingleDevice{}, dt::FP64{}, kFloat64);
}

TEST_CASE("P38 integer inputs are not cast", "[conformance]") {
  struct Lookup : torch::nn::Module {
    torch::nn::Embedding table = register_module("table", torch::nn::Embedding(10, 4));
    torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 3));
  };
  Job<Lookup> job;
  int64_t seen = 0;
  job.optimizer = maker<dt::SGD>(dt::SGDOptions{.lr = 0.01});
  job.loss = [&](Lookup& net, const dt::Batch& batch, dt::StepContext&) {
    CHECK(batch.data.scalar_type() == torch::kLong);
    seen += batch.data.max().item<int64_t>();
    return mse(net.head(net.table(batch.data)), batch.target);
  };
  const dt::TensorDataset data(torch::arange(8) + 2, torch::randn({8, 3}));
  const auto run = [&](auto precision) {
    seen = 0;
    CHECK(fit_alone<decltype(precision)>(quiet(1), job, data, {}, precision).steps == 2);
    CHECK(seen == 5 + 9);
  };
  run(dt::BF16True{});
  run(dt::BF16Mixed{});
  run(dt::FP64{});
  run(dt::MasterWeights<dt::BF16>{});
  run(dt::Apex<dt::O2>{{.init = 64}});
}

TEST_CASE("P60 P61 B024 updates below half a unit are lost in bf16 and kept by masters", "[conformance]") {
  CHECK(torch::equal(torch::ones({1}, kBFloat16).mul_(0.999), torch::ones({1}, kBFloat16)));
  const auto data = rows(400);
  const auto moved = [&](auto precision) {
    Job<One> job = pushing(6e-4);  // a bf16 next to 1 is 2^-8 below
    const Outcome outcome = fit_alone<decltype(precision)>(quiet(1), job, data, {}, precision);
    CHECK(outcome.steps == 100);
    return 1 - outcome.weights.item<double>();
  };
  CHECK(moved(dt::BF16True{}) == 0);
  CHECK(moved(dt::BF16Mixed{}) == Approx(0.06).epsilon(1e-4));
  CHECK(moved(dt::MasterWeights<dt::BF16>{}) == Approx(0.06).margin(0.002));  // rounded
  CHECK(moved(dt::MasterWeights<dt::FP16>{{.init = 1}}) == Approx(0.06).margin(0.0003));
  CHECK(moved(dt::Apex<dt::O2>{{.init = 1}}) == Approx(0.06).margin(0.0003));

  // Masters and moments are fp32.
  const auto moments = [&](auto precision) {
    Job<> job;
    job.optimizer = maker<dt::AdamW>(dt::AdamWOptions{.lr = 1e-3});
    Watch watch;
    int64_t seen = 0;
    watch.step = [&](dt::LoopState& state) {
      dt::FusedOptimizer& optimizer = *state.run.optimizers[0].fused();
      for (const dt::Slot& slot : state.run.gradients.slots)
        for (const auto& [name, tensor] : optimizer.state_of(slot.stepped).tensors) {
          CHECK(tensor.scalar_type() == kFloat32);
          ++seen;
        }
    };
    fit_alone<decltype(precision)>(quiet(1), job, rows(8), watch, precision);
    CHECK(seen == 2 * 5 * 2);
  };
  moments(dt::BF16Mixed{});
  moments(dt::MasterWeights<dt::BF16>{});
  moments(dt::Apex<dt::O2>{{.init = 64}});
}

TEST_CASE("P68 a half loss of more than 1 under a large scale costs skipped steps, not the run", "[conformance]") {
  Job<> job;
  int64_t forwards = 0;
  job.optimizer = maker<dt::SGD>(dt::SGDOptions{.lr = 0.01});
  job.loss = [&](Net& net, const dt::Batch& batch, dt::StepContext&) {
    ++forwards;
    const Tensor loss = torch::mse_loss(net.forward(batch.data) + 2, batch.target.to(kHalf));
    CHECK(loss.scalar_type() == kHalf);
    CHECK(loss.item<double>() > 1);
    return loss;
  };
  Watch watch;
  double scale = 0;
  watch.step = [&](dt::LoopState& state) {
    scale = state.run.scaler->scale();
    CHECK(std::isfinite(state.loss));
  };
  job.optimizer = maker<dt::SGD>(dt::SGDOptions{.lr = 1e-3});
  const Outcome outcome = fit_alone<dt::MasterWeights<dt::FP16>>(quiet(4), job, rows(), watch);
  CHECK(forwards == 24);
  CHECK(outcome.steps >= 18);
  CHECK(outcome.steps < 24);  // 65536 times anything is no fp16 number
  CHECK(scale == std::exp2(16 - double(24 - outcome.steps)));
  CHECK(outcome.weights.isfinite().all().item<bool>());
}

namespace {

/// LibTorch's optimizer and scheduler over one weight.
struct Stepped {
  auto configure_model() { return std::make_shared<One>(); }
  auto configure_optimizers(const dt::Parameters& p) {
    return dt::scheduled(torch::optim::SGD(p.tensors(), torch::optim::SGDOptions(0.125)),
                         [](auto& optimizer) { return torch::optim::StepLR(optimizer, 2, 0.5); });
  }
  Tensor training_step(One& net, const dt::Batch&, dt::StepContext&) { return net.w.to(kFloat32).sum(); }
};

/// An optimizer around another: SGD with each gradient first brought to a norm of its own.
struct Normalizing : torch::optim::SGD {
  using SGD::SGD;
  Tensor step(LossClosure closure = nullptr) override {
    torch::NoGradGuard no_grad;
    for (auto& group : param_groups())
      for (Tensor& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        parameter.mutable_grad().mul_(0.1 / (parameter.grad().norm().item<double>() + 1e-6));
      }
    return SGD::step(closure);
  }
};
struct Wrapped {
  auto configure_model() { return std::make_shared<Net>(); }
  auto configure_optimizers(const dt::Parameters& p) {
    return std::make_unique<Normalizing>(p.tensors(), torch::optim::SGDOptions(0.5));
  }
  Tensor training_step(Net& net, const dt::Batch& batch, dt::StepContext&) {
    return mse(net.forward(batch.data), batch.target);
  }
};

}  // namespace

TEST_CASE("P70 a scheduler reaches the optimizer whose tensors were replaced by masters", "[conformance]") {
  const auto train = [](auto precision) {
    Stepped task;
    std::vector<double> rates;
    Watch watch;
    watch.step = [&](dt::LoopState& state) {
      const auto& groups = std::as_const(state.run.optimizers[0].base()).param_groups();
      rates.push_back(groups[0].options().get_lr());
    };
    const Outcome outcome = fit_alone<decltype(precision)>(quiet(1), task, rows(), watch, precision);
    CHECK(rates == std::vector<double>{0.125, 0.125, 0.0625, 0.0625, 0.03125, 0.03125});
    return outcome.weights.item<double>();
  };
  // Six steps, the first three of 0.125 (LibTorch's first step of a scheduler only counts).
  const double expected = 1 - (3 * 0.125 + 2 * 0.0625 + 0.03125);
  CHECK(train(dt::FP32{}) == expected);
  CHECK(train(dt::MasterWeights<dt::BF16>{}) == expected);
  CHECK(train(dt::MasterWeights<dt::FP16>{{.init = 4}}) == expected);
  CHECK(train(dt::Apex<dt::O2>{{.init = 4}}) == expected);
}

TEST_CASE("P15 an optimizer that wraps another works under mixed precision", "[conformance]") {
  Wrapped task;
  const Tensor plain = fit_alone<dt::FP32>(quiet(), task, rows()).weights;
  CHECK(apart(fit_alone<dt::FP16Mixed>(quiet(), task, rows(), {}, dt::FP16Mixed{{.init = 64}}).weights, plain) < 5e-3);
  CHECK(apart(fit_alone<dt::Apex<dt::O1>>(quiet(), task, rows(), {}, dt::Apex<dt::O1>{{.init = 64}}).weights, plain) <
        5e-3);
  CHECK(apart(fit_alone<dt::Apex<dt::O2>>(quiet(), task, rows(), {}, dt::Apex<dt::O2>{{.init = 64}}).weights, plain) <
        5e-3);
  CHECK(apart(fit_alone<dt::MasterWeights<dt::BF16>>(quiet(), task, rows()).weights, plain) < 3e-2);
}

TEST_CASE("B023 a buffer used beside the input in a low format", "[conformance]") {
  struct Smoothing : torch::nn::Module {
    dt::Unit<torch::nn::Linear> in = register_module("in", dt::Unit<torch::nn::Linear>(5, 8));
    Tensor kernel = register_buffer("kernel", torch::tensor({{{0.25f, 0.5f, 0.25f}}}));
    dt::Unit<torch::nn::Linear> out = register_module("out", dt::Unit<torch::nn::Linear>(6, 3));
  };
  Job<Smoothing> job;
  job.loss = [](Smoothing& net, const dt::Batch& batch, dt::StepContext&) {
    const Tensor smooth = torch::conv1d(net.in(batch.data).unsqueeze(1), net.kernel).squeeze(1);
    return mse(net.out(smooth), batch.target);
  };
  const auto run = [&]<class S, class P>(S, P) { CHECK(fit<S, P>(quiet(1), job, rows(12)).steps == 3); };
  run(dt::SingleDevice{}, dt::BF16True{});
  run(dt::FSDP{}, dt::BF16True{});
  run(dt::FSDP{}, dt::BF16Mixed{});
  run(dt::FSDP{}, dt::MasterWeights<dt::BF16>{});
  run(dt::SingleDevice{}, dt::FP64{});
}

TEST_CASE("P20 sparse gradients under the scaler are checked, divided and stepped", "[conformance]") {
  struct Lookup : torch::nn::Module {
    torch::nn::Embedding table =
        register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true)));
    torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 3));
  };
  const dt::TensorDataset data(torch::tensor({1, 1, 2, 1, 3, 1, 3, 3}), torch::randn({8, 3}));
  const auto train = [&](bool sparse, auto precision, bool overflows) {
    Job<Lookup> job;
    job.model = [=] {
      auto net = std::make_shared<Lookup>();
      net->table->options.sparse(sparse);
      return net;
    };
    job.loss = [=, n = 0](Lookup& net, const dt::Batch& batch, dt::StepContext&) mutable {
      const Tensor found = net.table(batch.data);
      const Tensor loss = mse(net.head(found), batch.target);
      // Finite for each row, infinite once the rows of one index are added up.
      return overflows && n++ == 0 ? loss + found.sum() * 3e38 / 1024 : loss;
    };
    return fit_alone<decltype(precision)>(quiet(1), job, data, {}, precision);
  };
  const dt::FP16Mixed scaled{{.init = 1024}};
  CHECK(torch::equal(train(true, scaled, false).weights, train(false, scaled, false).weights));
  const Outcome skipped = train(true, scaled, true);
  CHECK(skipped.steps == 1);
  CHECK(skipped.weights.isfinite().all().item<bool>());
}
