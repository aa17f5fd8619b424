// SPDX-License-Identifier: Apache-2.0
// Parameter groups that are added while training goes on, optimizers that unscale by themselves, and what a run hands
// out for a checkpoint, on one device.
#include <catch2/catch.hpp>

#include <torch/optim.h>
#include <torch/utils.h>

#include "support/conformance_job.hpp"

namespace {

/// Divides its gradients by what it is told.
struct Unscaling : torch::optim::SGD {
  using torch::optim::SGD::SGD;
  double grad_scale = 1;
  std::vector<double> told, seen;  // at each step: the scale, and the largest gradient before it is divided
  torch::Tensor step(LossClosure closure = nullptr) override {
    torch::NoGradGuard no_grad;
    told.push_back(grad_scale);
    seen.push_back(0);
    for (auto& group : param_groups_)
      for (torch::Tensor& param : group.params()) {
        seen.back() = std::max(seen.back(), param.grad().abs().max().item<double>());
        param.mutable_grad().div_(grad_scale);
      }
    return torch::optim::SGD::step(closure);
  }
};

}  // namespace

template <>
inline constexpr dovetail::OptimizerTraits dovetail::optimizer_traits<Unscaling>{.elementwise = true,
                                                                                 .unscales_itself = true};

namespace {

using namespace conformance;
using torch::kFloat32, torch::kFloat64, torch::kHalf;

const auto outer = [](const std::string& name) { return name.starts_with("out.") || name == "scale"; };

enum class How { entry, optimizer, model };

/// Trains with what `outer` takes added after two of six steps: by the entry of the run, by the optimizer's own
/// add_param_group, or from the module's own parameters.
template <class S, class P, bool theirs = false>
Outcome with_added(dt::TrainerOptions options, How how, P precision = {}) {
  struct Theirs : Job<> {
    torch::optim::SGD configure_optimizers(const dt::Parameters& p) {
      return torch::optim::SGD(p.where_not(outer).tensors(), torch::optim::SGDOptions(0.1).momentum(0.9));
    }
  };
  std::conditional_t<theirs, Theirs, Job<>> task;
  task.optimizer = [](const dt::Parameters& p) -> Fused {
    return std::make_unique<dt::SGD>(p.where_not(outer), dt::SGDOptions{.lr = 0.1, .momentum = 0.9});
  };
  Watch watch;
  watch.step = [&](dt::LoopState& state) {
    if (state.step() == 1)
      for (const dt::Slot& slot : state.run.gradients.slots) CHECK((slot.optimizer == 0) == !outer(slot.name));
    if (state.step() != 2) return;
    dt::OptimizerEntry& optimizer = state.run.optimizers[0];
    const dt::Parameters added = state.run.parameters().where(outer);
    REQUIRE(added.size() == 3);
    if (how == How::model) {
      std::vector<Tensor> tensors;
      for (const auto& item : state.run.module->named_parameters())
        if (outer(item.key())) tensors.push_back(item.value());
      optimizer.base().add_param_group(torch::optim::OptimizerParamGroup(tensors));
    } else if (how == How::optimizer) {
      optimizer.base().add_param_group(torch::optim::OptimizerParamGroup(added.tensors()));
    } else if (theirs) {
      optimizer.add_param_group(added, torch::optim::SGDOptions(0.05).momentum(0.9));
    } else {
      optimizer.add_param_group(added, dt::SGDOptions{.lr = 0.05, .momentum = 0.9});
    }
  };
  return fit<S, P>(options, task, rows(), watch, {}, precision);
}

/// The same by hand, in fp32.
Tensor by_hand(const dt::TrainerOptions& options, double added_rate, double clip = HUGE_VAL) {
  torch::manual_seed(options.seed);
  Net net;
  std::vector<Tensor> first, second;
  for (const auto& item : net.named_parameters()) (outer(item.key()) ? second : first).push_back(item.value());
  torch::optim::SGD optimizer(first, torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto data = rows();
  const int64_t window = options.batch_size * options.accumulate;
  int64_t step = 0;
  for (int64_t epoch = 0; epoch < options.max_epochs; ++epoch)
    for (int64_t begin = 0; begin < data.size(); begin += window) {
      if (step == 2)
        optimizer.param_groups().emplace_back(
            second, std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(added_rate).momentum(0.9)));
      net.zero_grad();
      std::vector<int64_t> indices;
      for (int64_t i = begin; i < begin + window; ++i) indices.push_back(i);
      dt::Batch batch;
      data.fetch(indices, batch);
      mse(net.forward(batch.data), batch.target).backward();
      std::vector<Tensor> held = first;
      if (step >= 2) held.insert(held.end(), second.begin(), second.end());
      torch::nn::utils::clip_grad_norm_(held, clip);
      optimizer.step();
      ++step;
    }
  return flat(net);
}

dt::TrainerOptions six_steps(int64_t accumulate = 1) {
  auto options = quiet(1);
  options.accumulate = accumulate;
  options.max_epochs = accumulate;
  return options;
}

}  // namespace

TEST_CASE("P1 a group that is added takes part from the next step on, under every precision", "[conformance]") {
  int compared = 0;
  for (const int64_t accumulate : {1, 2}) {
    const auto options = six_steps(accumulate);
    const Tensor expected = by_hand(options, 0.05);
    const auto check_with = [&]<bool theirs, class S, class P>(S, P precision, double tolerance) {
      INFO(S::name << " x " << P::name << ", accumulate " << accumulate << (theirs ? ", LibTorch's SGD" : ""));
      const Outcome outcome = with_added<S, P, theirs>(options, How::entry, precision);
      CHECK(outcome.steps == 6);
      CHECK(apart(outcome.weights, expected) < tolerance);
      ++compared;
    };
    const auto check = [&](auto strategy, auto precision, double tolerance) {
      check_with.template operator()<false>(strategy, precision, tolerance);
    };
    const auto check_theirs = [&](auto strategy, auto precision, double tolerance) {
      check_with.template operator()<true>(strategy, precision, tolerance);
    };
    using dt::SingleDevice;
    check(SingleDevice{}, dt::FP32{}, 1e-6);
    check(SingleDevice{}, dt::FP64{}, 1e-6);
    check(SingleDevice{}, dt::Apex<dt::O0>{}, 1e-6);
    check(SingleDevice{}, dt::Apex<dt::O1>{{.init = 64}}, 3e-3);
    check(SingleDevice{}, dt::Apex<dt::O2>{{.init = 64}}, 3e-3);
    check(SingleDevice{}, dt::Apex<dt::O3>{}, 1e-2);
    check(SingleDevice{}, dt::MasterWeights<dt::BF16>{}, 2e-2);
    check(dt::DDP{}, dt::Apex<dt::O2>{{.init = 64}}, 3e-3);
    check(dt::Sharded<1>{}, dt::FP32{}, 1e-6);
    check(dt::Sharded<2>{}, dt::MasterWeights<dt::FP16>{{.init = 64}}, 3e-3);
    check(dt::FSDP{}, dt::FP32{}, 1e-6);
    check(dt::FSDP{}, dt::MasterWeights<dt::BF16>{}, 2e-2);
    check_theirs(SingleDevice{}, dt::FP32{}, 1e-6);
    check_theirs(SingleDevice{}, dt::Apex<dt::O2>{{.init = 64}}, 3e-3);
    check_theirs(dt::Sharded<2>{}, dt::MasterWeights<dt::FP16>{{.init = 64}}, 3e-3);
    check_theirs(dt::FSDP{}, dt::FP32{}, 1e-6);
  }
  CHECK(compared == 32);
  WARN("groups added: " << compared << " fits compared with a loop by hand");
}

TEST_CASE("P1 a group may be added to the optimizer itself, from the run's parameters or the model's",
          "[conformance]") {
  const auto options = six_steps();
  const auto check = [&]<class S, class P>(S, P precision) {
    INFO(S::name << " x " << P::name);
    const Outcome run = with_added<S, P>(options, How::optimizer, precision);
    CHECK(torch::equal(run.weights, with_added<S, P>(options, How::model, precision).weights));
    CHECK(torch::equal(run.weights, with_added<S, P>(options, How::optimizer, precision).weights));
    CHECK_FALSE(torch::equal(run.weights, with_added<S, P>(options, How::entry, precision).weights));  // another rate
    CHECK(apart(run.weights, by_hand(options, 0.1)) < 3e-3);
  };
  check(dt::SingleDevice{}, dt::FP32{});
  check(dt::SingleDevice{}, dt::Apex<dt::O2>{{.init = 64}});
  check(dt::Sharded<1>{}, dt::FP32{});
  check(dt::FSDP{}, dt::FP32{});
}

TEST_CASE("P1 an added group counts in the norm from then on", "[conformance]") {
  auto options = six_steps();
  options.gradient_clip = dt::clip_norm(0.2);
  CHECK(apart(with_added<dt::SingleDevice, dt::FP32>(options, How::entry).weights, by_hand(options, 0.05, 0.2)) < 1e-6);
  CHECK(apart(with_added<dt::FSDP, dt::FP32>(options, How::entry).weights, by_hand(options, 0.05, 0.2)) < 1e-6);
  CHECK(
      apart(with_added<dt::SingleDevice, dt::Apex<dt::O2>>(options, How::entry, dt::Apex<dt::O2>{{.init = 64}}).weights,
            by_hand(options, 0.05, 0.2)) < 3e-3);
}

TEST_CASE("P1 a group of LibTorch's Adagrad, which makes its state in its constructor", "[conformance]") {
  struct Task : Job<> {
    torch::optim::Adagrad configure_optimizers(const dt::Parameters& p) {
      return torch::optim::Adagrad(p.where_not(outer).tensors(), torch::optim::AdagradOptions(0.1));
    }
  } task;
  Watch watch;
  watch.step = [](dt::LoopState& state) {
    if (state.step() == 2) state.run.optimizers[0].add_param_group(state.run.parameters().where(outer));
  };
  Tensor before;
  watch.start = [&](dt::LoopState& state) { before = flat(*state.run.module); };
  const auto check = [&]<class S, class P>(S, P precision) {
    const Outcome outcome = fit<S, P>(six_steps(), task, rows(), watch, {}, precision);
    CHECK((outcome.weights != before).all().item<bool>());
    CHECK(outcome.steps == 6);
  };
  check(dt::SingleDevice{}, dt::FP32{});
  check(dt::SingleDevice{}, dt::Apex<dt::O2>{{.init = 64}});
}

TEST_CASE("P1 what may not be added is refused at the next step, by name", "[conformance]") {
  const auto refused = [](auto&& add, bool inner_only = true) {
    struct Task : Job<> {
      bool inner_only;
      dt::SGD configure_optimizers(const dt::Parameters& p) {
        return dt::SGD(inner_only ? p.where_not(outer) : p, {.lr = 0.1});
      }
    } task;
    task.inner_only = inner_only;
    task.model = [] {
      auto net = std::make_shared<Net>();
      net->scale.set_requires_grad(false);
      return net;
    };
    Watch watch;
    watch.step = [&](dt::LoopState& state) {
      if (state.step() == 2) add(state.run);
      CHECK(state.step() < 3);
    };
    try {
      fit<dt::SingleDevice, dt::FP32>(six_steps(), task, rows(), watch);
    } catch (const dt::Error& error) {
      CHECK(error.code() == dt::ExitCode::user_code);
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  using Run = dt::RunContext;
  CHECK_THAT(refused([](Run& run) { run.optimizers[0].add_param_group(run.parameters()); }, false),
             Catch::Contains("holds 'in.weight' twice"));
  CHECK_THAT(refused([](Run& run) {
               run.optimizers[0].add_param_group(dt::Parameters({{"new", {2}, torch::ones({2}).requires_grad_(true)}}));
             }),
             Catch::Contains("holds a tensor that may not be optimized here: ") &&
                 Catch::Contains("shape [2], entry 0 of group 1"));
  // Frozen when the fit began: it has no gradient home, and its masters were never made.
  CHECK_THAT(refused([](Run& run) {
               for (const auto& item : run.module->named_parameters())
                 if (item.key() == "scale")
                   run.optimizers[0].base().add_param_group(
                       torch::optim::OptimizerParamGroup({item.value().set_requires_grad(true)}));
             }),
             Catch::Contains("may not be optimized here"));
}

TEST_CASE("B028 an optimizer that unscales by itself is told the scale, and nobody else divides", "[conformance]") {
  struct Task : Job<> {
    std::shared_ptr<Unscaling> made;
    std::shared_ptr<Unscaling> configure_optimizers(const dt::Parameters& p) {
      return made = std::make_shared<Unscaling>(p.tensors(), torch::optim::SGDOptions(0.1));
    }
  };
  const auto train = [&]<class P>(P precision, int64_t accumulate, Task& task) {
    auto options = six_steps();
    options.accumulate = accumulate;
    return fit<dt::SingleDevice, P>(options, task, rows(), {}, {}, precision).weights;
  };
  Job<> job;
  Tensor plain = fit<dt::SingleDevice, dt::FP32>(six_steps(), job, rows()).weights;
  Task task;
  CHECK(apart(train(dt::FP32{}, 1, task), plain) < 1e-6);
  CHECK(task.made->told == std::vector<double>(6, 1.0));

  CHECK(apart(train(dt::FP16Mixed{{.init = 4096, .interval = 4}}, 1, task), plain) < 3e-3);
  CHECK(task.made->told == std::vector<double>{4096, 4096, 4096, 4096, 8192, 8192});
  for (const double seen : task.made->seen) CHECK(seen > 100);  // nobody has divided before
  train(dt::Apex<dt::O2>{{.init = 4096}}, 2, task);
  CHECK(task.made->told == std::vector<double>(3, 8192));  // two micro-batches
  for (const double seen : task.made->seen) CHECK(seen > 100);

  // A step that overflows is not taken, so there is nothing to tell.
  task.loss = [n = 0](Net& net, const dt::Batch& batch, dt::StepContext&) mutable {
    const Tensor loss = mse(net.forward(batch.data), batch.target);
    return n++ == 2 ? loss * HUGE_VAL : loss;
  };
  train(dt::FP16Mixed{{.init = 1024}}, 1, task);
  CHECK(task.made->told == std::vector<double>{1024, 1024, 512, 512, 512});

  auto options = six_steps();
  options.gradient_clip = dt::clip_norm(1);
  CHECK_THROWS_WITH((fit<dt::SingleDevice, dt::FP16Mixed>(options, task, rows())), Catch::Contains("dovetail-E010"));
}
