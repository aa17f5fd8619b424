// SPDX-License-Identifier: Apache-2.0
// Rows of the conformance table: closures, counts and lifetimes of fits on one device.
#include <catch2/catch.hpp>

#include <torch/optim.h>

#include "support/conformance_job.hpp"

namespace {

using namespace conformance;

struct WithLBFGS {
  std::function<Tensor(Net&, const dt::Batch&)> loss = [](Net& net, const dt::Batch& batch) {
    return mse(net.forward(batch.data), batch.target);
  };
  auto configure_model() { return std::make_shared<Net>(); }
  auto configure_optimizers(const dt::Parameters& p) {
    return torch::optim::LBFGS(
        p.tensors(), torch::optim::LBFGSOptions(1.0).max_iter(20).history_size(10).line_search_fn("strong_wolfe"));
  }
  Tensor training_step(Net& net, const dt::Batch& batch, dt::StepContext&) { return loss(net, batch); }
};

/// Says that it evaluates the loss by itself, and does not.
struct Idle : torch::optim::SGD {
  using SGD::SGD;
  Tensor step(LossClosure = nullptr) override { return {}; }
};

}  // namespace

template <>
inline constexpr dovetail::OptimizerTraits dovetail::optimizer_traits<Idle>{.elementwise = true,
                                                                            .requires_closure = true};

TEST_CASE("B012 T34 T35 T36 LBFGS: as many evaluations as by hand, each with fresh gradients", "[conformance]") {
  for (const int64_t accumulate : {1, 2}) {
    auto options = quiet(5, 24 / accumulate);
    options.accumulate = accumulate;
    WithLBFGS task;
    int64_t forwards = 0, backwards = 0;
    task.loss = [&](Net& net, const dt::Batch& batch) {
      CHECK(torch::GradMode::is_enabled());
      if (forwards++ % accumulate == 0)
        for (const Tensor& parameter : net.parameters())
          CHECK((!parameter.grad().defined() || parameter.grad().abs().max().item<double>() == 0));
      const Tensor loss = mse(net.forward(batch.data), batch.target);
      loss.register_hook([&](const Tensor&) { ++backwards; });
      return loss;
    };
    const auto data = rows();
    const Outcome outcome = fit<dt::SingleDevice, dt::FP32>(options, task, data);
    CHECK(outcome.steps == 5);

    torch::manual_seed(options.seed);
    Net net;
    WithLBFGS by_hand;
    dt::Parameters list;
    for (const auto& item : net.named_parameters())
      list.push_back({item.key(), item.value().sizes().vec(), item.value()});
    torch::optim::LBFGS optimizer = by_hand.configure_optimizers(list);
    dt::Batch batch;
    std::vector<int64_t> all(24);
    for (int64_t i = 0; i < 24; ++i) all[std::size_t(i)] = i;
    data.fetch(all, batch);
    int64_t evaluations = 0;
    double last = 0;
    for (int step = 0; step < 5; ++step)
      optimizer.step([&] {
        ++evaluations;
        optimizer.zero_grad();
        const Tensor loss = by_hand.loss(net, batch);
        loss.backward();
        last = loss.item<double>();
        return loss;
      });
    CHECK(evaluations > 20);
    if (accumulate == 1) {
      CHECK(forwards == evaluations);
      CHECK(apart(outcome.weights, flat(net)) < 1e-4);
    }
    CHECK(backwards == forwards);
    CHECK(forwards % accumulate == 0);
    CHECK(outcome.loss == Approx(last).epsilon(2e-2));  // sums in another order, after a hundred evaluations
    CHECK(outcome.losses.back() < outcome.losses.front());
  }
}

TEST_CASE("T36 a closure that is never called is an error", "[conformance]") {
  struct Task {
    auto configure_model() { return std::make_shared<Net>(); }
    auto configure_optimizers(const dt::Parameters& p) {
      return std::make_unique<Idle>(p.tensors(), torch::optim::SGDOptions(0.1));
    }
    Tensor training_step(Net& net, const dt::Batch& batch, dt::StepContext&) {
      return mse(net.forward(batch.data), batch.target);
    }
  } task;
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH((fit<dt::SingleDevice, dt::FP32>(quiet(), task, rows())),
                    Contains("Idle") && Contains("did not evaluate the loss"));
}

TEST_CASE("T34 one backward for each batch", "[conformance]") {
  for (const int64_t accumulate : {1, 2, 4}) {
    Job<> job;
    int64_t backwards = 0;
    job.loss = [&](Net& net, const dt::Batch& batch, dt::StepContext&) {
      const Tensor loss = mse(net.forward(batch.data), batch.target);
      loss.register_hook([&](const Tensor&) { ++backwards; });
      return loss;
    };
    auto options = quiet();
    options.accumulate = accumulate;
    const auto count = [&](auto strategy) {
      backwards = 0;
      fit<decltype(strategy), dt::FP32>(options, job, rows());
      CHECK(backwards == 12);
    };
    count(dt::SingleDevice{});
    count(dt::DDP{});
    count(dt::Sharded<1>{});
    count(dt::Sharded<2>{});
    count(dt::FSDP{});
  }
}

TEST_CASE("B039 schedules count optimizer steps", "[conformance]") {
  struct Scheduled {
    auto configure_model() { return std::make_shared<Net>(); }
    auto configure_optimizers(const dt::Parameters& p) {
      return dt::scheduled(dt::SGD(p, {.lr = 0.125}), dt::StepDecay{.every = 1, .gamma = 0.5});
    }
    Tensor training_step(Net& net, const dt::Batch& batch, dt::StepContext&) {
      return mse(net.forward(batch.data), batch.target);
    }
  } task;
  auto options = quiet(1, 3);  // eight micro-batches
  options.accumulate = 2;
  std::vector<double> rates;
  Watch watch;
  watch.step = [&](dt::LoopState& state) {
    CHECK(state.step() == int64_t(rates.size()) + 1);
    rates.push_back(std::as_const(state.run.optimizers[0].base()).param_groups()[0].options().get_lr());
  };
  CHECK(fit<dt::SingleDevice, dt::FP32>(options, task, rows(), watch).steps == 4);
  CHECK(rates == std::vector<double>{0.0625, 0.03125, 0.015625, 0.0078125});
}

namespace {

using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

template <class S, class P>
void check_lets_go() {
  INFO(S::name << " x " << P::name);
  std::weak_ptr<torch::nn::Module> model;
  std::vector<Weak> storages;
  const auto note = [&](const Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage()) storages.emplace_back(tensor.storage().getWeakStorageImpl());
  };
  Job<> job;
  job.optimizer = maker<dt::AdamW>(dt::AdamWOptions{.lr = 1e-3, .eps = 1e-3});
  Watch watch;
  watch.step = [&](dt::LoopState& state) {
    model = state.run.module;
    dt::FusedOptimizer& optimizer = *state.run.optimizers[0].fused();
    for (const dt::Slot& slot : state.run.gradients.slots) {
      for (const Tensor& tensor : {slot.model, slot.held, slot.stepped, slot.main, slot.arrivals}) note(tensor);
      for (const auto& [name, tensor] : optimizer.state_of(slot.stepped).tensors) note(tensor);
    }
  };
  fit<S, P>(quiet(1), job, rows(8), watch);
  watch = {};
  CHECK(model.expired());
  CHECK(storages.size() >= 20);
  int64_t alive = 0;
  for (const Weak& storage : storages) alive += !storage.expired();
  CHECK(alive == 0);
}

}  // namespace

TEST_CASE("B102 B103 a run that is over lets go of model, gradients and optimizer state", "[conformance]") {
  for (int run = 0; run < 3; ++run) {
    check_lets_go<dt::SingleDevice, dt::FP32>();
    check_lets_go<dt::DDP, dt::FP32>();
    check_lets_go<dt::Sharded<1>, dt::FP32>();
    check_lets_go<dt::Sharded<2>, dt::BF16Mixed>();
    check_lets_go<dt::FSDP, dt::FP32>();
    check_lets_go<dt::FSDP, dt::MasterWeights<dt::BF16>>();
    check_lets_go<dt::DDP, dt::Apex<dt::O2>>();
  }
}

namespace {

template <class S, class Task>
void check_silent(Task& task, const Tensor& plain) {
  INFO(S::name);
  const Outcome outcome = fit<S, dt::FP32>(quiet(), task, rows());
  CHECK(outcome.communication.calls == 0);
  CHECK(outcome.communication.bytes == 0);
  CHECK(apart(outcome.weights, plain) < 1e-6);
}

}  // namespace

TEST_CASE("C-27 one rank talks to nobody and trains as one device does", "[conformance]") {
  Job<> job;
  const Tensor plain = fit<dt::SingleDevice, dt::FP32>(quiet(), job, rows()).weights;
  check_silent<dt::DDP>(job, plain);
  check_silent<dt::Sharded<1>>(job, plain);
  check_silent<dt::Sharded<2>>(job, plain);
  check_silent<dt::FSDP>(job, plain);
}
