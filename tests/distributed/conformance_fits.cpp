// SPDX-License-Identifier: Apache-2.0
// Rows of the conformance table: fits under every strategy that spreads work over ranks, against loops written by hand
// on the concatenated batch.
#include <torch/optim.h>

#include <array>
#include <map>

#include "support/conformance_job.hpp"
#include "support/conformance_rank.hpp"

namespace {

using namespace conformance;
using torch::kBFloat16, torch::kFloat32, torch::kFloat64, torch::kHalf;

// ---- strategies by name, and the loop by hand

template <class Task>
using FitOf = std::function<Outcome(const dt::TrainerOptions&, Task&, const dt::TensorDataset&, Watch)>;

/// All strategies under one precision.
template <class P = dt::FP32, class Task = Job<>>
std::map<std::string, FitOf<Task>> ways(P precision = {}) {
  const auto under = [&]<class S>(S strategy) -> FitOf<Task> {
    return [=](const dt::TrainerOptions& options, Task& task, const dt::TensorDataset& data, Watch watch) {
      return conformance::fit<S, P>(options, task, data, std::move(watch), strategy, precision);
    };
  };
  return {{"ddp", under(dt::DDP{})},
          {"ddp, in rank order", under(dt::DDP{{.reduce_format = dt::Format::fp32}})},
          {"sharded-1", under(dt::Sharded<1>{})},
          {"sharded-2", under(dt::Sharded<2>{})},
          {"fsdp", under(dt::FSDP{})},  // which keeps small units gathered
          {"fsdp, every unit", under(dt::FSDP{{.keep_below = 0}})}};
}

using Optimizer = std::unique_ptr<torch::optim::Optimizer>;
using Maker = std::function<Optimizer(std::vector<Tensor>)>;

Optimizer plain_sgd(std::vector<Tensor> tensors) {
  return std::make_unique<torch::optim::SGD>(tensors, torch::optim::SGDOptions(0.1));
}

struct ByHand {
  Tensor weights;
  std::vector<double> losses, norms;
};

/// One device on what all ranks have together; a window is one batch.
template <class Model = Net>
ByHand by_hand(
    const Rank& me, const dt::TrainerOptions& options, const dt::TensorDataset& data, const Maker& make,
    const std::function<Tensor(Model&, const dt::Batch&, int64_t step)>& loss =
        [](Model& net, const dt::Batch& batch, int64_t) { return mse(net.forward(batch.data), batch.target); },
    const std::function<std::shared_ptr<Model>()>& model = [] { return std::make_shared<Model>(); }) {
  torch::manual_seed(options.seed);
  const auto net = model();
  const Optimizer optimizer = make(net->parameters());
  const int64_t rows = options.batch_size * options.accumulate * me.size();
  ByHand result;
  for (int64_t epoch = 0; epoch < options.max_epochs; ++epoch)
    for (int64_t first = 0; first < data.size(); first += rows) {
      std::vector<int64_t> indices;
      for (int64_t i = first; i < std::min(data.size(), first + rows); ++i) indices.push_back(i);
      dt::Batch batch;
      data.fetch(indices, batch);
      optimizer->zero_grad();
      const Tensor value = loss(*net, batch, int64_t(result.losses.size()));
      value.backward();
      const auto& clip = options.gradient_clip;
      if (clip && clip->kind == dt::ClipOptions::Kind::value)
        torch::nn::utils::clip_grad_value_(net->parameters(), clip->limit);
      else
        result.norms.push_back(torch::nn::utils::clip_grad_norm_(net->parameters(), clip ? clip->limit : HUGE_VAL));
      optimizer->step();
      result.losses.push_back(value.item<double>());
    }
  result.weights = flat(*net);
  return result;
}

/// Twelve windows for any number of ranks up to three.
dt::TensorDataset data_for(const Rank& me, int64_t windows = 6, int64_t inputs = 5, int64_t outputs = 3,
                           int64_t accumulate = 1) {
  return rows(windows * accumulate * me.size() * 4, 1, inputs, outputs);
}

// ---- parity

void shapes(Rank& me) {
  for (const auto& [inputs, width, outputs] :
       std::vector<std::array<int64_t, 3>>{{16, 15, 8}, {7, 15, 3}, {16, 17, 8}}) {
    Job<> job;
    job.model = [=, inputs = inputs, width = width, outputs = outputs] {
      return std::make_shared<Net>(inputs, width, outputs);
    };
    job.optimizer = maker<dt::Adam>(dt::AdamOptions{.lr = 1e-2, .eps = 1e-3});
    const auto data = data_for(me, 5, inputs, outputs);
    const Outcome ddp = ways().at("ddp")(quiet(), job, data, {});
    me.that(ddp.losses.size() == 10, "ten steps");
    for (const auto& [name, fit] : ways()) {
      const Outcome outcome = fit(quiet(), job, data, {});
      for (std::size_t i = 0; i < 10; ++i)
        me.near(std::abs(outcome.losses[i] - ddp.losses[i]), 1e-6, name + ": the loss of step " + std::to_string(i));
      me.near(apart(outcome.weights, ddp.weights), 1e-5, name + ": weights");
    }
  }
}

void every_optimizer(Rank& me) {
  using Options = torch::optim::AdamWOptions;
  struct Kind {
    std::string name;
    std::function<Fused(const dt::Parameters&)> ours;
    Maker theirs;
  };
  const std::vector<Kind> kinds{
      {"AdamW", maker<dt::AdamW>(dt::AdamWOptions{.lr = 1e-2, .eps = 1e-3, .weight_decay = 0.1}),
       [](auto p) { return std::make_unique<torch::optim::AdamW>(p, Options(1e-2).eps(1e-3).weight_decay(0.1)); }},
      {"Adam, amsgrad", maker<dt::Adam>(dt::AdamOptions{.lr = 1e-2, .eps = 1e-3, .amsgrad = true}),
       [](auto p) {
         return std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(1e-2).eps(1e-3).amsgrad(true));
       }},
      {"SGD, Nesterov", maker<dt::SGD>(dt::SGDOptions{.lr = 0.05, .momentum = 0.9, .nesterov = true}),
       [](auto p) {
         return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true));
       }},
      {"Adagrad", maker<dt::Adagrad>(dt::AdagradOptions{.lr = 0.05, .eps = 1e-3}), [](auto p) {
         return std::make_unique<torch::optim::Adagrad>(p, torch::optim::AdagradOptions(0.05).eps(1e-3));
       }}};
  for (const Kind& kind : kinds)
    for (const bool clip : {false, true}) {
      Job<> job;
      job.optimizer = kind.ours;
      auto options = quiet();
      if (clip) options.gradient_clip = dt::clip_norm(0.3);
      const auto data = data_for(me);
      const Tensor expected = by_hand(me, options, data, kind.theirs).weights;
      for (const auto& [name, fit] : ways()) {
        const Tensor weights = fit(options, job, data, {}).weights;
        me.near(apart(weights, expected), 1e-5, name + ", " + kind.name);
        me.that(me.same_everywhere(weights), name + ", " + kind.name + ": ranks part ways");
      }
    }
}

/// Groups by name, one of which most ranks own nothing of.
void groups(Rank& me) {
  const auto is_scale = [](const std::string& name) { return name == "scale"; };
  Job<> job;
  job.optimizer = [&](const dt::Parameters& p) -> Fused {
    return std::make_unique<dt::AdamW>(std::vector<dt::ParameterGroup<dt::AdamWOptions>>{
        {p.where(is_scale), {.lr = 3e-2, .eps = 1e-3, .weight_decay = 0.5}},
        {p.where_not(is_scale), {.lr = 1e-2, .eps = 1e-3, .weight_decay = 0}}});
  };
  const Maker theirs = [](std::vector<Tensor> tensors) -> Optimizer {
    std::vector<torch::optim::OptimizerParamGroup> list;
    using Options = torch::optim::AdamWOptions;
    // The model registers `scale` first: a module's own parameters come before its children's.
    list.emplace_back(std::vector<Tensor>{tensors[0]},
                      std::make_unique<Options>(Options(3e-2).eps(1e-3).weight_decay(0.5)));
    list.emplace_back(std::vector<Tensor>(tensors.begin() + 1, tensors.end()),
                      std::make_unique<Options>(Options(1e-2).eps(1e-3).weight_decay(0)));
    return std::make_unique<torch::optim::AdamW>(list);
  };
  const auto data = data_for(me);
  const Tensor expected = by_hand(me, quiet(), data, theirs).weights;
  for (const auto& [name, fit] : ways()) {
    Watch watch;
    watch.start = [&, name = name](dt::LoopState& state) {
      const auto& base = state.run.optimizers[0].base();
      me.that(dynamic_cast<const dt::AdamW*>(&base) != nullptr, name + ": the optimizer is the user's");
      const auto& list = std::as_const(base).param_groups();
      me.that(list.size() == 2 && list[0].params().size() == 1 && list[1].params().size() == 4, name + ": groups");
      using Held = dt::detail::HeldOptions<dt::AdamWOptions>;
      for (std::size_t g = 0; g < list.size(); ++g) {
        const dt::AdamWOptions& options = static_cast<const Held&>(list[g].options()).value;
        me.that(options.lr == (g == 0 ? 3e-2 : 1e-2) && options.eps == 1e-3 && options.betas[1] == 0.999 &&
                    options.weight_decay == (g == 0 ? 0.5 : 0),
                name + ": options of group " + std::to_string(g));
      }
    };
    me.near(apart(fit(quiet(), job, data, watch).weights, expected), 1e-5, name);
  }
}

// ---- clipping

void clipping(Rank& me) {
  struct Mass {
    std::string name;
    std::function<Tensor(Net&)> term;  // gives one parameter nearly all of the gradient
  };
  const std::vector<Mass> masses{{"even", [](Net&) { return torch::zeros({}); }},
                                 {"scale", [](Net& net) { return 30 * net.scale; }},
                                 {"out", [](Net&) { return torch::zeros({}); }}};
  for (const Mass& mass : masses)
    for (const auto clip : {dt::clip_norm(0.2), dt::clip_value(0.02), dt::clip_norm(1e6)}) {
      Job<> job;
      const double rate = clip.limit > 1 ? 1e-4 : 0.5;  // unclipped it would run away
      job.optimizer = maker<dt::SGD>(dt::SGDOptions{.lr = rate});
      const double of_out = mass.name == "out" ? 40 : 1;
      const auto loss = [&](Net& net, const dt::Batch& batch) {
        // Before the head all but vanishes, or does not.
        const Tensor hidden = torch::tanh(net.in(batch.data));
        return mse(net.out(hidden * of_out) * net.scale, batch.target) + mass.term(net);
      };
      job.loss = [&](Net& net, const dt::Batch& batch, dt::StepContext&) { return loss(net, batch); };
      auto options = quiet();
      options.gradient_clip = clip;
      const auto data = data_for(me);
      const ByHand expected = by_hand<Net>(
          me, options, data,
          [&](auto p) { return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(rate)); },
          [&](Net& net, const dt::Batch& batch, int64_t) { return loss(net, batch); });
      for (const auto& [name, fit] : ways()) {
        std::vector<double> norms;
        Watch watch;
        watch.step = [&](dt::LoopState& state) { norms.push_back(state.gradient_norm); };
        const Outcome outcome = fit(options, job, data, watch);
        const std::string what = name + ", " + mass.name + ", " + std::to_string(clip.limit);
        me.near(apart(outcome.weights, expected.weights), 1e-5, what + ": weights");
        me.that(me.same_everywhere(outcome.weights), what + ": ranks part ways");
        if (clip.kind != dt::ClipOptions::Kind::norm) continue;
        me.that(norms.size() == expected.norms.size(), what + ": steps");
        for (std::size_t i = 0; i < norms.size(); ++i)
          me.near(std::abs(norms[i] / expected.norms[i] - 1), 1e-5, what + ": the norm");
        me.that(me.same_everywhere(torch::tensor(norms, kFloat64)), what + ": norms differ between ranks");
        if (clip.limit < 1 || mass.name != "even") continue;  // without clipping the run would run away
        auto free = options;
        free.gradient_clip.reset();
        me.that(fit(free, job, data, {}).communication.calls == outcome.communication.calls,
                what + ": clipping has collectives of its own");
      }
    }
}

/// fp16: the norm that clips is that of all ranks, unscaled.
void clipping_scaled(Rank& me) {
  Job<> job;
  job.optimizer = maker<dt::SGD>(dt::SGDOptions{.lr = 0.5});
  auto options = quiet();
  options.gradient_clip = dt::clip_norm(0.2);
  const auto data = data_for(me);
  const ByHand expected = by_hand(
      me, options, data, [](auto p) { return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.5)); });
  for (const auto& [name, fit] : ways(dt::FP16Mixed{{.init = 256}})) {
    std::vector<double> norms;
    Watch watch;
    watch.step = [&](dt::LoopState& state) {
      if (!state.step_skipped) norms.push_back(state.gradient_norm);
    };
    const Outcome outcome = fit(options, job, data, watch);
    me.that(outcome.steps == 12, name + ": steps");
    for (std::size_t i = 0; i < norms.size(); ++i)
      me.near(std::abs(norms[i] / expected.norms[i] - 1), 1e-2, name + ": the norm of step " + std::to_string(i));
    me.near(apart(outcome.weights, expected.weights), 1e-2, name);
    me.that(me.same_everywhere(outcome.weights), name + ": ranks part ways");
  }
}

void bucket_sizes(Rank& me) {
  Job<> job;
  job.model = [] { return std::make_shared<Net>(5, 60000, 3); };  // 480,000 elements, most of them in two tensors
  auto options = quiet(1);
  options.gradient_clip = dt::clip_norm(0.5);
  const auto data = data_for(me, 3);
  const auto norms = [&](auto strategy) {
    std::vector<double> seen;
    Watch watch;
    watch.step = [&](dt::LoopState& state) { seen.push_back(state.gradient_norm); };
    conformance::fit<decltype(strategy), dt::FP32>(options, job, data, watch, strategy);
    return seen;
  };
  const auto one = norms(dt::DDP{{.bucket_mb = 25, .first_bucket_mb = 25}});
  for (const auto& other : {norms(dt::DDP{{.bucket_mb = 1, .first_bucket_mb = 1}}), norms(dt::Sharded<2>{})})
    for (std::size_t i = 0; i < one.size(); ++i) me.near(std::abs(other[i] / one[i] - 1), 1e-6, "the norm");
}

// ---- gradients are sums, once

struct One : torch::nn::Module {
  Tensor w = register_parameter("w", torch::ones({1}));
};

/// Gradients are the data themselves.
Job<One> pushed() {
  Job<One> job;
  job.optimizer = maker<dt::SGD>(dt::SGDOptions{.lr = 1});
  job.loss = [](One& net, const dt::Batch& batch, dt::StepContext&) { return (batch.data * net.w).mean(); };
  return job;
}

void divided_once(Rank& me) {
  for (const int64_t accumulate : {1, 2, 3}) {
    const int64_t samples = 2 * accumulate * me.size();
    Tensor pushes = torch::zeros({samples, 1});
    for (int64_t i = 0; i < samples; ++i) pushes[i] = double(1 << (i % 5));  // exact in fp32
    const dt::TensorDataset data(pushes, torch::zeros({samples, 1}));
    auto options = quiet(1, 1);
    options.accumulate = accumulate;
    Job<One> job = pushed();
    const int64_t window = samples / 2;
    const double expected =
        1 - pushes.slice(0, 0, window).mean().item<double>() - pushes.slice(0, window).mean().item<double>();
    for (const auto& [name, fit] : ways<dt::FP32, Job<One>>()) {
      const Outcome outcome = fit(options, job, data, {});
      me.near(std::abs(outcome.weights.item<double>() / expected - 1), 1e-6,
              name + ", accumulate " + std::to_string(accumulate));
      me.that(outcome.steps == 2, name + ": steps");
    }
  }
}

void reduced_once(Rank& me) {
  const auto calls = [&](int64_t accumulate) {
    Job<> job;
    auto options = quiet(1);
    options.accumulate = accumulate;
    return ways().at("ddp")(options, job, data_for(me, 6, 5, 3, accumulate), {}).communication;
  };
  const auto one = calls(1), four = calls(4);
  me.that(four.of(dt::Collective::all_reduce) == one.of(dt::Collective::all_reduce), "reductions of six windows");
  me.that(me.size() == 1 || one.of(dt::Collective::all_reduce).calls >= 6, "there are some");
  me.that(four.calls == one.calls, "collectives of six windows");
}

/// The norm under DDP is that of the reduced gradient.
void small_norm(Rank& me) {
  Job<One> job = pushed();
  auto options = quiet(1, 2);
  options.gradient_clip = dt::clip_norm(1.0);
  const dt::TensorDataset data(torch::full({2 * me.size(), 1}, 0.8f), torch::zeros({2 * me.size(), 1}));
  for (const auto& [name, fit] : ways<dt::FP32, Job<One>>()) {
    Watch watch;
    watch.step = [&](dt::LoopState& state) { me.near(std::abs(state.gradient_norm - 0.8), 1e-6, "the norm"); };
    me.near(std::abs(fit(options, job, data, watch).weights.item<double>() - 0.2), 1e-6, name + ": the weight");
  }
}

void step_counts(Rank& me) {
  Job<> job;
  job.optimizer = maker<dt::AdamW>(dt::AdamWOptions{.lr = 1e-3});
  auto options = quiet(1);
  options.accumulate = 3;
  for (const auto& [name, fit] : ways()) {
    int64_t seen = 0;
    Watch watch;
    watch.step = [&, name = name](dt::LoopState& state) {
      dt::FusedOptimizer& optimizer = *state.run.optimizers[0].fused();
      for (const dt::Slot& slot : state.run.gradients.slots) {
        if (slot.stepped.numel() == 0) continue;
        me.that(optimizer.state_of(slot.stepped).steps == state.step(), name + ": the step count of " + slot.name);
        ++seen;
      }
    };
    me.that(fit(options, job, data_for(me, 4, 5, 3, 3), watch).steps == 4 && seen >= 4, name + ": steps");
  }
}

// ---- parts that some ranks own nothing of

void owns_nothing(Rank& me) {
  Job<One> job = pushed();
  job.optimizer = maker<dt::AdamW>(dt::AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
  auto options = quiet(2, 2);
  options.gradient_clip = dt::clip_norm(0.5);
  const dt::TensorDataset data(torch::rand({4 * me.size(), 1}, at::detail::createCPUGenerator(4)),
                               torch::zeros({4 * me.size(), 1}));
  const Tensor expected =
      by_hand<One>(
          me, options, data,
          [](auto p) {
            return std::make_unique<torch::optim::AdamW>(p, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
          },
          [](One& net, const dt::Batch& batch, int64_t) { return (batch.data * net.w).mean(); })
          .weights;
  for (const auto& [name, fit] : ways<dt::FP32, Job<One>>()) {
    double mine = 0;
    Watch watch;
    watch.start = [&](dt::LoopState& state) { mine = double(state.run.gradients.slots[0].held.numel()); };
    const Outcome outcome = fit(options, job, data, watch);
    me.near(apart(outcome.weights, expected), 1e-6, name);
    me.that(me.same_everywhere(outcome.weights), name + ": ranks part ways");
    double owners = 0;
    if (me.size() > 1)
      for (double one : me.comm.all_gather(std::span<const double>(&mine, 1))) owners += one;
    me.that(me.size() == 1 || owners == (name.starts_with("ddp") ? me.size() : 1), name + ": owners");
  }
}

void balanced(Rank& me) {
  Job<> job;
  job.model = [] { return std::make_shared<Net>(5, 101, 3); };
  for (const auto& [name, fit] : ways()) {
    if (name.starts_with("ddp")) continue;
    double mine = 0, total = 0;
    Watch watch;
    watch.start = [&](dt::LoopState& state) {
      for (const dt::Slot& slot : state.run.gradients.slots) {
        mine += double(slot.held.numel());
        total += double(slot.model.numel());
      }
    };
    fit(quiet(1), job, data_for(me, 1), watch);
    double sum = me.size() == 1 ? mine : 0;
    if (me.size() > 1)
      for (double one : me.comm.all_gather(std::span<const double>(&mine, 1))) sum += one;
    me.that(sum == total, name + ": parts are not the model");
    // FSDP pads each unit.
    me.that(mine <= std::ceil(total / me.size()) + (name.starts_with("fsdp") ? 3 : 0), name + ": a part is too large");
  }
}

// ---- schedules, two optimizers, who keeps gradients

struct Scheduled {
  auto configure_model() { return std::make_shared<Net>(); }
  auto configure_optimizers(const dt::Parameters& p) {
    return dt::scheduled(torch::optim::SGD(p.tensors(), torch::optim::SGDOptions(0.2).momentum(0.9)),
                         [](auto& optimizer) { return torch::optim::StepLR(optimizer, 2, 0.5); });
  }
  Tensor training_step(Net& net, const dt::Batch& batch, dt::StepContext&) {
    return mse(net.forward(batch.data), batch.target);
  }
};

void schedules(Rank& me) {
  Scheduled task;
  const auto data = data_for(me);
  struct WithRate : torch::optim::SGD {
    using SGD::SGD;
    std::shared_ptr<int> taken = std::make_shared<int>(0);
    Tensor step(LossClosure closure = nullptr) override {
      // LibTorch's first step of a scheduler changes nothing.
      param_groups()[0].options().set_lr(0.2 * std::pow(0.5, std::max(0, (*taken - 1) / 2)));
      ++*taken;
      return SGD::step(closure);
    }
  };
  const Tensor expected = by_hand(me, quiet(), data, [](std::vector<Tensor> p) -> Optimizer {
                            return std::make_unique<WithRate>(p, torch::optim::SGDOptions(0.2).momentum(0.9));
                          }).weights;
  for (const auto& [name, fit] : ways<dt::FP32, Scheduled>()) {
    std::vector<double> rates;
    Watch watch;
    watch.step = [&](dt::LoopState& state) {
      rates.push_back(std::as_const(state.run.optimizers[0].base()).param_groups()[0].options().get_lr());
    };
    me.near(apart(fit(quiet(), task, data, watch).weights, expected), 1e-5, name);
    me.that(rates.size() == 12 && rates[0] == 0.2 && rates[2] == 0.1 && rates[11] == 0.2 / 32, name + ": rates");
  }
}

struct Halves {
  auto configure_model() { return std::make_shared<Net>(); }
  auto configure_optimizers(const dt::Parameters& p) {
    const auto inner = [](const std::string& name) { return name.starts_with("in."); };
    return std::tuple(dt::AdamW(p.where(inner), {.lr = 1e-2, .eps = 1e-3}),
                      dt::SGD(p.where_not(inner), {.lr = 0.05, .momentum = 0.9}));
  }
  Tensor training_step(Net& net, const dt::Batch& batch, dt::StepContext&) {
    return mse(net.forward(batch.data), batch.target);
  }
};

void two_optimizers(Rank& me) {
  Halves task;
  const auto data = data_for(me);
  struct Both : torch::optim::SGD {
    torch::optim::AdamW adam;
    explicit Both(const std::vector<Tensor>& all)  // scale, in.weight, in.bias, out.weight, out.bias
        : SGD({all[0], all[3], all[4]}, torch::optim::SGDOptions(0.05).momentum(0.9)),
          adam({all[1], all[2]}, torch::optim::AdamWOptions(1e-2).eps(1e-3)) {}
    Tensor step(LossClosure closure = nullptr) override {
      adam.step();
      const Tensor result = SGD::step(closure);
      adam.zero_grad();
      return result;
    }
  };
  const Tensor expected =
      by_hand(me, quiet(), data, [](auto p) -> Optimizer { return std::make_unique<Both>(p); }).weights;
  for (const auto& [name, fit] : ways<dt::FP32, Halves>())
    me.near(apart(fit(quiet(), task, data, {}).weights, expected), 1e-5, name);
}

void gradients_of_owners(Rank& me) {
  Job<> job;
  Watch watch;
  int64_t looked = 0;
  watch.step = [&](dt::LoopState& state) {
    for (const dt::Slot& slot : state.run.gradients.slots) {
      if (me.size() == 1) continue;
      const Tensor gradient = slot.model.grad();
      me.that(!gradient.defined() ||
                  gradient.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() == nullptr,
              "the whole gradient of " + slot.name + " has memory");
      me.that(slot.main.numel() == slot.held.numel(), "its owner's part");
      ++looked;
    }
  };
  ways().at("sharded-2")(quiet(1), job, data_for(me, 3), watch);
  me.that(me.size() == 1 || looked == 15, "gradients seen");
}

// ---- parameters that are used at times

struct Branches : torch::nn::Module {
  dt::Unit<torch::nn::Linear> a = register_module("a", dt::Unit<torch::nn::Linear>(5, 3)),
                              b = register_module("b", dt::Unit<torch::nn::Linear>(5, 3));
};

void branch_by_micro_batch(Rank& me) {
  Job<Branches> job;
  auto options = quiet();
  options.accumulate = 2;
  options.find_unused = true;
  const auto data = data_for(me, 4, 5, 3, 2);
  int64_t micro_batch = 0;
  job.loss = [&](Branches& net, const dt::Batch& batch, dt::StepContext&) {
    return mse((micro_batch++ % 2 == 0 ? net.a : net.b)(batch.data), batch.target);
  };
  const Tensor expected =
      by_hand<Branches>(me, options, data, plain_sgd, [&](Branches& net, const dt::Batch& batch, int64_t) {
        const int64_t half = batch.data.size(0) / 2;
        const Tensor first = mse(net.a(batch.data.slice(0, 0, half)), batch.target.slice(0, 0, half));
        const Tensor second = mse(net.b(batch.data.slice(0, half)), batch.target.slice(0, half));
        return (first + second) / 2;
      }).weights;
  for (const auto& [name, fit] : ways<dt::FP32, Job<Branches>>()) {
    micro_batch = 0;
    const Tensor weights = fit(options, job, data, {}).weights;
    me.near(apart(weights, expected), 1e-6, name);
    me.that(me.same_everywhere(weights), name + ": ranks part ways");
  }
}

struct InTurn {
  auto configure_model() { return std::make_shared<Branches>(); }
  auto configure_optimizers(const dt::Parameters& p) {
    const auto first = [](const std::string& name) { return name.starts_with("a."); };
    return std::tuple(dt::SGD(p.where(first), {.lr = 0.1, .momentum = 0.9}),
                      dt::SGD(p.where_not(first), {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}));
  }
  Tensor training_step(Branches& net, const dt::Batch& batch, dt::StepContext& step) {
    return mse((step.step() % 2 == 0 ? net.a : net.b)(batch.data), batch.target);
  }
};

void optimizers_in_turn(Rank& me) {
  InTurn task;
  auto options = quiet();
  options.find_unused = true;
  const auto data = data_for(me, 5);
  struct Pair : torch::optim::SGD {
    torch::optim::SGD second;
    explicit Pair(const std::vector<Tensor>& all)
        : SGD({all[0], all[1]}, torch::optim::SGDOptions(0.1).momentum(0.9)),
          second({all[2], all[3]}, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1)) {}
    Tensor step(LossClosure closure = nullptr) override {
      second.step();
      second.zero_grad();
      return SGD::step(closure);
    }
  };
  const Tensor expected = by_hand<Branches>(
                              me, options, data, [](auto p) -> Optimizer { return std::make_unique<Pair>(p); },
                              [](Branches& net, const dt::Batch& batch, int64_t step) {
                                return mse((step % 2 == 0 ? net.a : net.b)(batch.data), batch.target);
                              })
                              .weights;
  for (const auto& [name, fit] : ways<dt::FP32, InTurn>()) {
    const Outcome outcome = fit(options, task, data, {});
    me.that(outcome.steps == 10, name + ": steps");
    me.near(apart(outcome.weights, expected), 1e-5, name);
    me.that(me.same_everywhere(outcome.weights), name + ": ranks part ways");
  }
}

// ---- what is trainable changes

/// Of the parameters, in the order in which Net registers them: scale, in.weight, in.bias, out.weight, out.bias.
using Trains = std::array<bool, 5>;

void thaw(Net& net, const Trains& trains) {
  std::size_t i = 0;
  for (Tensor& parameter : net.parameters()) parameter.requires_grad_(trains[i++]);
}

/// All train, then a unit rests, then a weight and what is outside of units, then all but a bias, then all again.
Trains by_step(int64_t step) {
  switch (step / 2) {
    case 1:
      return {true, false, false, true, true};
    case 2:
      return {false, true, true, false, true};
    case 3:
      return {false, false, false, false, true};
  }
  return {true, true, true, true, true};
}

/// The unit rests in every second micro-batch of some windows, another one in all of others.
Trains by_micro_batch(int64_t step, int64_t micro_batch) {
  const bool in = step % 3 != 1 || micro_batch % 2 == 0, out = step % 4 != 2;
  return {true, in, in, out, out};
}

using Changes = std::function<Trains(int64_t step, int64_t micro_batch)>;

/// Plain PyTorch: what is frozen gets no gradient, and an optimizer leaves alone what has none.
Tensor by_hand_with(const Rank& me, const dt::TrainerOptions& options, const dt::TensorDataset& data, const Maker& make,
                    const Changes& changes) {
  torch::manual_seed(options.seed);
  Net net;
  const Optimizer optimizer = make(net.parameters());
  const int64_t rows = options.batch_size * me.size();
  int64_t step = 0;
  for (int64_t epoch = 0; epoch < options.max_epochs; ++epoch)
    for (int64_t first = 0; first < data.size(); ++step) {
      optimizer->zero_grad();
      for (int64_t i = 0; i < options.accumulate; ++i, first += rows) {
        std::vector<int64_t> indices;
        for (int64_t row = first; row < first + rows; ++row) indices.push_back(row);
        dt::Batch batch;
        data.fetch(indices, batch);
        thaw(net, changes(step, i));
        (mse(net.forward(batch.data), batch.target) / options.accumulate).backward();
      }
      if (options.gradient_clip) torch::nn::utils::clip_grad_norm_(net.parameters(), options.gradient_clip->limit);
      optimizer->step();
    }
  return flat(net);
}

Optimizer plain_adamw(std::vector<Tensor> tensors) {
  return std::make_unique<torch::optim::AdamW>(tensors, torch::optim::AdamWOptions(1e-2).eps(1e-3).weight_decay(0.3));
}

/// A parameter that rests keeps its bits, its step count and its moments.
struct Resting {
  std::vector<Tensor> held;
  std::vector<dt::ParameterState> states;

  void look(Rank& me, dt::LoopState& state, const Trains& trained, const std::string& what) {
    dt::FusedOptimizer& optimizer = *state.run.optimizers[0].fused();
    const auto& slots = state.run.gradients.slots;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].held.numel() == 0) continue;
      const dt::ParameterState now = optimizer.state_of(slots[i].stepped);
      if (!held.empty() && !trained[i]) {
        me.that(torch::equal(slots[i].held.detach(), held[i]), what + ": " + slots[i].name + " rests and moved");
        me.that(now.steps == states[i].steps, what + ": " + slots[i].name + " rests and counts a step");
        for (std::size_t k = 0; k < now.tensors.size(); ++k)
          me.that(torch::equal(now.tensors[k].second, states[i].tensors[k].second),
                  what + ": a moment of " + slots[i].name + " moved");
      } else if (!held.empty()) {
        me.that(now.steps == states[i].steps + 1, what + ": " + slots[i].name + " was stepped");
      }
    }
    held.clear();
    states.clear();
    for (const dt::Slot& slot : slots) {
      held.push_back(slot.held.detach().clone());
      states.push_back(optimizer.state_of(slot.stepped));
      for (auto& [name, tensor] : states.back().tensors) tensor = tensor.clone();
    }
  }
};

template <class P>
void check_thaw(Rank& me, P precision, const dt::TrainerOptions& options, bool by_callback, const Changes& changes,
                double tolerance, const std::string& text) {
  const auto data = data_for(me, 6, 5, 3, options.accumulate);
  const Tensor expected = by_hand_with(me, options, data, plain_adamw, changes);
  for (const auto& [name, fit] : ways<P>(precision)) {
    const std::string what = name + ", " + text;
    Job<> job;
    job.optimizer = maker<dt::AdamW>(dt::AdamWOptions{.lr = 1e-2, .eps = 1e-3, .weight_decay = 0.3});
    int64_t calls = 0;
    job.loss = [&](Net& net, const dt::Batch& batch, dt::StepContext&) {
      if (!by_callback) thaw(net, changes(calls / options.accumulate, calls % options.accumulate));
      ++calls;
      return mse(net.forward(batch.data), batch.target);
    };
    Resting resting;
    Watch watch;
    watch.step = [&](dt::LoopState& state) {
      Trains trained{};
      for (int64_t i = 0; i < options.accumulate; ++i)
        for (std::size_t k = 0; k < trained.size(); ++k) trained[k] |= changes(state.step() - 1, i)[k];
      resting.look(me, state, trained, what);
      if (by_callback) thaw(dynamic_cast<Net&>(*state.run.module), changes(state.step(), 0));
    };
    const Outcome outcome = fit(options, job, data, watch);
    me.that(outcome.steps == 12, what + ": steps");
    me.near(apart(outcome.weights, expected), tolerance, what);
    me.that(me.same_everywhere(outcome.weights), what + ": ranks part ways");
  }
}

void trainability(Rank& me) {
  const auto steps = [](int64_t step, int64_t) { return by_step(step); };
  for (const int64_t accumulate : {1, 2})
    for (const bool clip : {false, true}) {
      auto options = quiet();
      options.accumulate = accumulate;
      if (clip) options.gradient_clip = dt::clip_norm(0.3);
      const std::string text = "accumulate " + std::to_string(accumulate) + (clip ? ", clipped" : "");
      const bool scaled = clip == (accumulate > 1), all = support::long_tests();
      if (all || !scaled) check_thaw(me, dt::FP32{}, options, clip, steps, 1e-5, text);
      if (accumulate > 1 && (all || scaled))
        check_thaw(me, dt::FP32{}, options, false, by_micro_batch, 1e-5, text + ", changes between micro-batches");
      if (all || scaled) check_thaw(me, dt::FP16Mixed{{.init = 256}}, options, false, steps, 2e-2, text + ", scaled");
    }
}

/// So it is with masters, of which the model is a rounded copy.
template <class S, class P>
void check_thaw_masters(Rank& me, P precision) {
  Job<> job;
  job.optimizer = maker<dt::AdamW>(dt::AdamWOptions{.lr = 1e-2, .eps = 1e-3, .weight_decay = 0.3});
  job.loss = [&](Net& net, const dt::Batch& batch, dt::StepContext& step) {
    thaw(net, by_step(step.step()));
    return mse(net.forward(batch.data), batch.target);
  };
  Resting resting;
  Watch watch;
  watch.step = [&](dt::LoopState& state) {
    resting.look(me, state, by_step(state.step() - 1), std::string(S::name) + ", masters");
  };
  const auto data = data_for(me);
  const auto steps = [](int64_t step, int64_t) { return by_step(step); };
  const Outcome outcome = conformance::fit<S, P>(quiet(), job, data, watch, {}, precision);
  me.near(apart(outcome.weights, by_hand_with(me, quiet(), data, plain_adamw, steps)), 2e-2, std::string(S::name));
  me.that(me.same_everywhere(outcome.weights), std::string(S::name) + ": ranks part ways");
}

void trainability_of_masters(Rank& me) {
  check_thaw_masters<dt::DDP>(me, dt::MasterWeights<dt::BF16>{});
  check_thaw_masters<dt::Sharded<2>>(me, dt::MasterWeights<dt::FP16>{{.init = 64}});
  check_thaw_masters<dt::FSDP>(me, dt::MasterWeights<dt::BF16>{});
}

// ---- recomputation

/// Draws random numbers; one of its parameters is used at times.
struct DropsImpl : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(5, 9)),
                    out = register_module("out", torch::nn::Linear(9, 5));
  Tensor spare = register_parameter("spare", torch::ones({5}));
  Tensor forward(const Tensor& x, bool uses_spare) {
    const Tensor y = x + out(torch::dropout(torch::tanh(in(x)), 0.3, is_training()));
    return uses_spare ? y * spare : y;
  }
};
TORCH_MODULE(Drops);

struct Dropping : torch::nn::Module {
  dt::Unit<Drops> a = register_module("a", dt::Unit<Drops>()), b = register_module("b", dt::Unit<Drops>());
  dt::Unit<torch::nn::Linear> head = register_module("head", dt::Unit<torch::nn::Linear>(5, 3));
};

/// Under every strategy: the same bits as without, and the same collectives, also where some ranks do not use a unit,
/// or a parameter inside of one.
void recomputation(Rank& me) {
  enum class Use { all, spare_nowhere, spare_on_some, unit_on_some };
  const auto run = [&](const auto& fit, bool recomputes, int64_t accumulate, bool deterministic, Use use) {
    Job<Dropping> job;
    job.model = [&] {
      auto net = std::make_shared<Dropping>();
      for (auto* unit : {&net->a, &net->b}) (*unit)->recompute_activations(recomputes);
      return net;
    };
    job.optimizer = maker<dt::AdamW>(dt::AdamWOptions{.lr = 1e-2, .weight_decay = 0.2});
    job.loss = [&](Dropping& net, const dt::Batch& batch, dt::StepContext&) {
      const bool me_too = me.rank() == 0;
      const Tensor x =
          net.a(batch.data, use == Use::all || use == Use::unit_on_some || (use == Use::spare_on_some && me_too));
      return mse(net.head(use == Use::unit_on_some && !me_too ? x : net.b(x, true)), batch.target);
    };
    auto options = quiet();
    options.accumulate = accumulate;
    options.deterministic = deterministic;
    options.find_unused = use != Use::all;
    return fit(options, job, data_for(me, 3, 5, 3, accumulate), Watch{});
  };
  for (const auto& [name, fit] : ways<dt::FP32, Job<Dropping>>())
    for (const Use use : {Use::all, Use::spare_nowhere, Use::spare_on_some, Use::unit_on_some})
      for (const int64_t accumulate : {1, 2})
        for (const bool deterministic : {false, true}) {
          if (deterministic && name != "ddp") continue;
          if (!support::long_tests() && accumulate != 1 + (int(use) + me.size() + deterministic) % 2) continue;
          const std::string what = name + (deterministic ? ", deterministic" : "") + ", accumulate " +
                                   std::to_string(accumulate) + ", use " + std::to_string(int(use));
          const Outcome kept = run(fit, false, accumulate, deterministic, use);
          const Outcome again = run(fit, true, accumulate, deterministic, use);
          me.that(kept.steps == 6, what + ": steps");
          me.near(apart(again.weights, kept.weights), 0, what + ": weights");
          me.that(again.losses == kept.losses, what + ": other losses");
          me.that(me.same_everywhere(again.weights), what + ": ranks part ways");
          me.that(again.communication.each == kept.communication.each, what + ": other collectives");
        }
  // What no rank uses is named, as it is without.
  for (const auto& [name, fit] : ways<dt::FP32, Job<Dropping>>()) {
    Job<Dropping> job;
    job.model = [] {
      auto net = std::make_shared<Dropping>();
      net->a->recompute_activations();
      return net;
    };
    job.loss = [](Dropping& net, const dt::Batch& batch, dt::StepContext&) {
      return mse(net.head(net.b(net.a(batch.data, false), true)), batch.target);
    };
    std::string said;
    try {
      fit(quiet(), job, data_for(me), {});
    } catch (const dt::Error& error) {
      said = error.what();
    }
    me.that(said.find("the parameter 'a.spare' got no gradient at step 0") != std::string::npos, name + ": " + said);
  }
}

// ---- gradients of gradients

/// A loss, and twice the norm of its gradient: by each sample's inputs, or by two parameters.
Tensor penalized(Net& net, const dt::Batch& batch, bool by_inputs) {
  const Tensor x = batch.data.detach().requires_grad_(by_inputs);
  const Tensor loss = mse(net.forward(x), batch.target);
  const std::vector<Tensor> by = by_inputs ? std::vector<Tensor>{x} : std::vector<Tensor>{net.in->weight, net.scale};
  const auto gradients = torch::autograd::grad({loss}, by, {}, {}, /*create_graph=*/true);
  if (by_inputs) return loss + 2 * (gradients[0].to(kFloat32) * x.size(0)).norm(2, 1).mean();
  return loss + 2 * (gradients[0].norm() + gradients[1].norm());
}

template <class P>
void check_penalties(Rank& me, P precision, bool by_inputs, int64_t accumulate, double tolerance) {
  auto options = quiet();
  options.accumulate = accumulate;
  const auto data = data_for(me, 5, 5, 3, accumulate);
  Job<> job;
  job.optimizer = maker<dt::SGD>(dt::SGDOptions{.lr = 0.02});
  const auto by_hand_with = [&](bool penalizes) {
    return by_hand<Net>(
               me, options, data,
               [](auto p) { return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.02)); },
               [&](Net& net, const dt::Batch& batch, int64_t) {
                 Tensor sum = torch::zeros({});
                 const int64_t size = options.batch_size, parts = batch.data.size(0) / size;
                 for (int64_t i = 0; i < parts; ++i) {  // what one rank has in one micro-batch
                   const dt::Batch part{batch.data.narrow(0, i * size, size), batch.target.narrow(0, i * size, size)};
                   sum = sum + (penalizes ? penalized(net, part, by_inputs) : mse(net.forward(part.data), part.target));
                 }
                 return sum / parts;
               })
        .weights;
  };
  const Tensor expected = by_hand_with(true);
  const double matters = apart(expected, by_hand_with(false));
  me.that(matters > 0.05, "without the penalty weights differ by " + std::to_string(matters) + " only");
  for (const auto& [name, fit] : ways(precision)) {
    const std::string what = name + " x " + std::string(P::name) + (by_inputs ? ", by inputs" : ", by parameters") +
                             ", accumulate " + std::to_string(accumulate);
    job.loss = [&](Net& net, const dt::Batch& batch, dt::StepContext&) { return penalized(net, batch, by_inputs); };
    const Outcome outcome = fit(options, job, data, {});
    me.that(outcome.steps == 10, what + ": steps");
    me.near(apart(outcome.weights, expected), tolerance, what);
    me.that(me.same_everywhere(outcome.weights), what + ": ranks part ways");
    me.that(torch::equal(fit(options, job, data, {}).weights, outcome.weights), what + ": other bits the second time");
    if (name.starts_with("fsdp")) continue;  // gathers its units once more
    job.loss = Job<>().loss;
    me.that(fit(options, job, data, {}).communication.each == outcome.communication.each,
            what + ": sends other things");
  }
}

void penalties(Rank& me) {
  for (const bool by_inputs : {true, false})
    for (const int64_t accumulate : {1, 2}) {
      check_penalties(me, dt::FP32{}, by_inputs, accumulate, 1e-5);
      check_penalties(me, dt::BF16Mixed{}, by_inputs, accumulate, 2e-2);
      check_penalties(me, dt::FP16Mixed{{.init = 64}}, by_inputs, accumulate, 5e-3);
    }
}

// ---- formats

/// Main gradients of DDP are to the bit what all ranks' own give: added up over the window's micro-batches, rounded
/// once, summed in fp32 in rank order.
template <class P>
void check_reduced(Rank& me, P precision, dt::Format format, int64_t accumulate) {
  auto options = quiet(1);
  options.accumulate = accumulate;
  const auto data = data_for(me, 6, 5, 3, accumulate);
  const std::string what = "ddp x " + std::string(P::name) + " reduced in " + std::string(dt::name_of(format)) +
                           ", accumulate " + std::to_string(accumulate);
  std::map<std::string, Tensor> own;  // gradients of the window, in fp32
  Job<> job;
  job.loss = [&](Net& net, const dt::Batch& batch, dt::StepContext&) {
    const Tensor loss = mse(net.forward(batch.data), batch.target);
    for (const auto& item : net.named_parameters()) {
      const Tensor gradient = torch::autograd::grad({loss}, {item.value()}, {}, true)[0].to(kFloat32);
      Tensor& sum = own[item.key()];
      sum = sum.defined() ? sum + gradient : gradient;
    }
    return loss;
  };
  int64_t looked = 0;
  Watch watch;
  watch.step = [&](dt::LoopState& state) {
    for (const dt::Slot& slot : state.run.gradients.slots) {
      if (me.size() == 1) continue;
      const Tensor mine = own.at(slot.name).to(dt::dtype_of(format)).to(kFloat32).contiguous();
      const Tensor all = torch::empty({me.size(), mine.numel()});
      me.comm.all_gather_into(all, mine);
      Tensor sum = all[0].clone();
      for (int r = 1; r < me.size(); ++r) sum += all[r];
      me.that(torch::equal(slot.main.flatten(), sum), what + ": the gradient of " + slot.name);
      ++looked;
    }
    own.clear();
  };
  const auto run = [&](dt::DDP strategy, const Watch& with) {
    return conformance::fit<dt::DDP, P>(options, job, data, with, strategy, precision);
  };
  const dt::DDP strategy{{.reduce_format = format}};
  const Outcome outcome = run(strategy, watch), plain = run(dt::DDP{}, {});
  me.that(me.size() == 1 || looked == 30, what + ": gradients seen");
  me.near(apart(outcome.weights, plain.weights), 2e-2, what);
  me.that(me.same_everywhere(outcome.weights), what + ": ranks part ways");
  me.that(torch::equal(run(strategy, {}).weights, outcome.weights), what + ": other bits the second time");
  const bool rounds = me.size() > 1 && format != dt::Format::fp32 && P::traits.storage == dt::Format::fp32;
  if (rounds || me.size() == 1)
    me.that(torch::equal(outcome.weights, plain.weights) != rounds, what + ": rounding shows");
}

void reduced(Rank& me) {
  for (const auto format : {dt::Format::bf16, dt::Format::fp16, dt::Format::fp32})
    for (const int64_t accumulate : {1, 2}) {
      check_reduced(me, dt::FP32{}, format, accumulate);
      check_reduced(me, dt::MasterWeights<dt::BF16>{}, format, accumulate);
    }
}

template <class P>
void check_low(Rank& me, const std::string& precision, const Tensor& expected) {
  Job<> job;
  for (const auto& [name, fit] : ways<P>()) {
    const Outcome outcome = fit(quiet(1), job, data_for(me), {});
    me.that(outcome.steps == 6, name + " x " + precision + ": steps");
    me.near(apart(outcome.weights, expected), 2e-2, name + " x " + precision);
    me.that(me.same_everywhere(outcome.weights), name + " x " + precision + ": ranks part ways");
  }
}

void low_formats(Rank& me) {
  const Tensor expected = by_hand(me, quiet(1), data_for(me), plain_sgd).weights;
  check_low<dt::BF16Mixed>(me, "bf16-mixed", expected);
  check_low<dt::BF16True>(me, "bf16-true", expected);
}

template <class S, class P>
void check_masters(Rank& me, P precision) {
  Job<> job;
  Watch watch;
  int64_t looked = 0;
  watch.step = [&](dt::LoopState& state) {
    const bool whole = S::traits.shards == dt::Shards::nothing;
    for (const dt::Slot& slot : state.run.gradients.slots) {
      me.that(!slot.stepped.is_same(slot.held), slot.name + " has a master");
      if (whole) me.that(me.same_everywhere(slot.stepped), "masters of " + slot.name + " differ between ranks");
      me.that(torch::equal(slot.held.detach(), slot.stepped.detach().to(slot.held.scalar_type())),
              slot.name + " is not its master, rounded");
      ++looked;
    }
  };
  const Outcome outcome = conformance::fit<S, P>(quiet(1), job, data_for(me, 3), watch, {}, precision);
  me.that(looked == 15, std::string(S::name) + ": masters seen");
  me.that(me.same_everywhere(outcome.weights), std::string(S::name) + ": ranks part ways");
}

void masters(Rank& me) {
  check_masters<dt::DDP>(me, dt::Apex<dt::O2>{{.init = 64}});
  check_masters<dt::DDP>(me, dt::MasterWeights<dt::BF16>{});
  check_masters<dt::Sharded<1>>(me, dt::MasterWeights<dt::BF16>{});
  check_masters<dt::Sharded<2>>(me, dt::MasterWeights<dt::FP16>{{.init = 64}});
  check_masters<dt::FSDP>(me, dt::MasterWeights<dt::BF16>{});
}

/// An overflow on one rank, over and over.
void overflow_on_one(Rank& me) {
  const auto data = data_for(me, 4);
  for (const auto& [name, fit] : ways<dt::FP16Mixed>())
    for (const int bad : {0, me.size() - 1})
      for (int round = 0; round < (support::long_tests() ? 10 : 2); ++round) {
        Job<> job;
        int64_t calls = 0;
        job.loss = [&](Net& net, const dt::Batch& batch, dt::StepContext&) {
          const Tensor loss = mse(net.forward(batch.data), batch.target);
          const bool overflows = calls++ == 1 && me.rank() == bad;
          return overflows ? loss + (net.scale - net.scale.detach()).sqrt() : loss;  // finite, its gradient is not
        };
        std::vector<bool> skipped;
        std::vector<double> scales;
        std::vector<Tensor> seen;
        Watch watch;
        watch.step = [&](dt::LoopState& state) {
          skipped.push_back(state.step_skipped);
          scales.push_back(state.run.scaler->scale());
          seen.push_back(torch::cat([&] {
            std::vector<Tensor> all;
            for (const dt::Slot& slot : state.run.gradients.slots) all.push_back(slot.held.detach().flatten().clone());
            return all;
          }()));
        };
        const Outcome outcome = fit(quiet(1), job, data, watch);
        me.that(skipped == std::vector<bool>{false, true, false, false}, name + ": skipped steps");
        me.that(scales == std::vector<double>{65536, 32768, 32768, 32768}, name + ": scales");
        me.that(torch::equal(seen[0], seen[1]), name + ": the skipped step changed something");
        me.that(outcome.steps == 3, name + ": steps");
        me.that(me.same_everywhere(outcome.weights), name + ": ranks part ways");
      }
}

// ---- groups that are added, losses with a scaler each

/// Under one pair, with what is in `out` and `scale` added after two steps.
FitOf<Job<>> with_added(const FitOf<Job<>>& fit) {
  return [fit](const dt::TrainerOptions& options, Job<>& job, const dt::TensorDataset& data, Watch watch) {
    const auto outer = [](const std::string& name) { return !name.starts_with("in."); };
    job.optimizer = [=](const dt::Parameters& p) -> Fused {
      return std::make_unique<dt::SGD>(p.where_not(outer), dt::SGDOptions{.lr = 0.1});
    };
    watch.step = [=, then = watch.step](dt::LoopState& state) {
      if (state.step() == 2)
        state.run.optimizers[0].add_param_group(state.run.parameters().where(outer), dt::SGDOptions{.lr = 0.05});
      then(state);
    };
    return fit(options, job, data, watch);
  };
}

void added_groups(Rank& me) {
  auto options = quiet(1);
  options.gradient_clip = dt::clip_norm(0.4);  // in the norm are the gradients of what is stepped
  const auto data = data_for(me, 6);
  torch::optim::Optimizer* optimizer = nullptr;
  const auto expected = by_hand<Net>(
      me, options, data,
      [&](auto p) {
        auto made = plain_sgd({p[1], p[2]});  // scale comes first
        optimizer = made.get();
        return made;
      },
      [&](Net& net, const dt::Batch& batch, int64_t step) {
        const auto p = net.parameters();
        const bool added = step >= 2;
        if (step == 2)
          optimizer->param_groups().emplace_back(
              std::vector<Tensor>{p[0], p[3], p[4]},
              std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(0.05)));
        for (const std::size_t i : {0, 3, 4}) p[i].set_requires_grad(added);
        return mse(net.forward(batch.data), batch.target);
      });
  const auto check = [&](const std::string& name, const FitOf<Job<>>& fit, double tolerance) {
    Job<> job;
    const Outcome outcome = with_added(fit)(options, job, data, {});
    me.that(outcome.steps == 6, name + ": steps");
    me.near(apart(outcome.weights, expected.weights), tolerance, name);
    me.that(me.same_everywhere(outcome.weights), name + ": ranks part ways");
    me.that(torch::equal(outcome.weights, with_added(fit)(options, job, data, {}).weights), name + ": other bits");
  };
  for (const auto& [name, fit] : ways()) check(name, fit, 1e-5);
  for (const auto& [name, fit] : ways<dt::FP16Mixed>(dt::FP16Mixed{{.init = 64}})) check("fp16 " + name, fit, 5e-3);
  const auto one = [&]<class S, class P>(S strategy, P precision) {
    check(
        std::string(S::name) + " x " + std::string(P::name),
        [=](const auto& options, auto& job, const auto& data, Watch watch) {
          return conformance::fit<S, P>(options, job, data, std::move(watch), strategy, precision);
        },
        std::is_same_v<P, dt::MasterWeights<dt::BF16>> ? 2e-2 : 5e-3);
  };
  one(dt::DDP{}, dt::Apex<dt::O2>{{.init = 64}});
  one(dt::Sharded<2>{}, dt::MasterWeights<dt::FP16>{{.init = 64}});
  one(dt::FSDP{}, dt::MasterWeights<dt::BF16>{});
}

void other_groups(Rank& me) {
  for (const auto& [name, fit] : ways()) {
    Job<> job;
    job.optimizer = [](const dt::Parameters& p) -> Fused {
      return std::make_unique<dt::SGD>(p.where([](const auto& name) { return name.starts_with("in."); }),
                                       dt::SGDOptions{.lr = 0.1});
    };
    Watch watch;
    watch.step = [&](dt::LoopState& state) {
      const bool last = me.rank() + 1 == me.size();
      me.that(me.size() == 1 || state.step() <= 2, name + ": a step with different groups");
      if (state.step() == 2)
        state.run.optimizers[0].add_param_group(state.run.parameters().where(
            [=](const std::string& other) { return other == (last ? "out.weight" : "out.bias"); }));
    };
    try {
      fit(quiet(1), job, data_for(me), watch);
      me.that(me.size() == 1, name + ": taken");
    } catch (const dt::Error& error) {
      me.that(error.code() == dt::ExitCode::ranks_disagree &&
                  std::string(error.what())
                      .starts_with("rank " + std::to_string(me.size() - 1) + " has added other parameter groups"),
              name + ": " + error.what());
    }
  }
}

/// Two losses, of which the second one overflows on one rank: not in its value, in the gradient of what it alone has.
struct TwoLosses : Job<> {
  const Rank* me = nullptr;
  int bad = 0, at = 0, calls = 0;
  std::array<Tensor, 2> training_step(Net& net, const dt::Batch& batch, dt::StepContext&) {
    std::array<Tensor, 2> losses = of(net, batch);
    if (calls++ == at && me->rank() == bad) losses[1] = losses[1] + (net.scale - net.scale.detach()).sqrt();
    return losses;
  }
  static std::array<Tensor, 2> of(Net& net, const dt::Batch& batch) {
    const Tensor out = net.out(torch::tanh(net.in(batch.data)));
    return {mse(out, batch.target), 0.1 * mse((out * net.scale).square(), batch.target)};
  }
};

template <class P>
void check_losses(Rank& me, dt::DDP strategy, P precision) {
  const auto both = [](Net& net, const dt::Batch& batch, int64_t) {
    const auto [one, other] = TwoLosses::of(net, batch);
    return one + other;
  };
  for (const int64_t accumulate : {1, 2})
    for (const int bad : {0, me.size() - 1})
      for (int at = int(accumulate); at < 2 * accumulate; ++at) {  // in the second of five windows
        auto options = quiet(1);
        options.accumulate = accumulate;
        const auto data = data_for(me, 5, 5, 3, accumulate);
        TwoLosses task;
        task.me = &me;
        task.bad = bad;
        task.at = at;
        std::vector<std::array<double, 2>> scales;
        std::vector<bool> skipped;
        Watch watch;
        watch.step = [&](dt::LoopState& state) {
          skipped.push_back(state.step_skipped);
          scales.push_back({state.run.scaler->scale(), state.run.further_scalers.at(0).scale()});
        };
        const Outcome outcome = conformance::fit<dt::DDP, P>(options, task, data, watch, strategy, precision);
        std::string what(P::name);
        what += ", bad micro-batch " + std::to_string(at) + " of rank " + std::to_string(bad) + ": ";
        me.that(skipped == std::vector<bool>{false, true, false, false, false}, what + "skipped steps");
        using Scales = std::vector<std::array<double, 2>>;
        me.that(scales == Scales{{64, 64}, {64, 32}, {64, 32}, {64, 32}, {64, 32}}, what + "scales");
        me.that(me.same_everywhere(outcome.weights), what + "ranks part ways");
        Job<> without;
        dt::TensorDataset rest = data;
        const int64_t window = options.batch_size * accumulate * me.size();
        const auto left = [&](const Tensor& t) { return torch::cat({t.slice(0, 0, window), t.slice(0, 2 * window)}); };
        std::vector<int64_t> indices;
        for (int64_t i = 0; i < data.size(); ++i) indices.push_back(i);
        dt::Batch all;
        data.fetch(indices, all);
        rest = dt::TensorDataset(left(all.data), left(all.target));
        me.near(apart(outcome.weights, by_hand<Net>(me, options, rest, plain_sgd, both).weights), 5e-3, what);
      }
}

void scaler_for_each_loss(Rank& me) {
  for (const dt::DDP& strategy : {dt::DDP{}, dt::DDP{{.reduce_format = dt::Format::fp32}}}) {
    check_losses(me, strategy, dt::Apex<dt::O1>{{.init = 64}});
    check_losses(me, strategy, dt::Apex<dt::O2>{{.init = 64}});
  }
}

/// The scale moves within a window, on every rank, where one rank overflowed.
void apex_literal(Rank& me) {
  auto options = quiet(1);
  options.accumulate = 2;
  const auto check = [&](dt::DDP strategy, auto precision) {
    for (const int bad : {0, me.size() - 1}) {
      dt::RunContext* run = nullptr;
      std::vector<double> scales;
      std::vector<bool> skipped;
      Job<> job;
      job.loss = [&](Net& net, const dt::Batch& batch, dt::StepContext&) {
        scales.push_back(run->scaler->scale());
        const Tensor loss = mse(net.forward(batch.data), batch.target);
        const bool overflows = scales.size() == 3 && me.rank() == bad;  // the first micro-batch of the second window
        return overflows ? loss + (net.scale - net.scale.detach()).sqrt() : loss;
      };
      Watch watch;
      watch.start = [&](dt::LoopState& state) { run = &state.run; };
      watch.step = [&](dt::LoopState& state) { skipped.push_back(state.step_skipped); };
      const auto data = data_for(me, 4, 5, 3, 2);
      const Outcome outcome =
          conformance::fit<dt::DDP, decltype(precision)>(options, job, data, watch, strategy, precision);
      me.that(scales == std::vector<double>{64, 64, 64, 32, 32, 32, 64, 64}, "scales of micro-batches");
      me.that(skipped == std::vector<bool>{false, true, false, false}, "skipped steps");
      me.that(me.same_everywhere(outcome.weights), "ranks part ways");
    }
  };
  const dt::ApexOptions apex{.init = 64, .interval = 3, .apex_literal = true};
  for (const dt::DDP& strategy : {dt::DDP{}, dt::DDP{{.reduce_format = dt::Format::fp32}}}) {
    check(strategy, dt::Apex<dt::O1>{apex});
    check(strategy, dt::Apex<dt::O2>{apex});
  }
}

void double_first(Rank& me) {
  torch::manual_seed(5);
  const auto net = std::make_shared<Net>();
  torch::manual_seed(5);
  Net plain;
  plain.to(kFloat64);
  const auto data = rows(10, 3);
  dt::Batch all;
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < 10; ++i) indices.push_back(i);
  data.fetch(indices, all);
  torch::NoGradGuard no_grad;
  const double expected = torch::mse_loss(plain.forward(all.data.to(kFloat64)), all.target.to(kFloat64)).item<double>();
  Job<> job;
  job.loss = [&](Net& model, const dt::Batch& batch, dt::StepContext&) {
    me.that(batch.data.scalar_type() == kFloat64, "inputs are fp64");
    return torch::mse_loss(model.forward(batch.data), batch.target.to(kFloat64));
  };
  const auto row = dt::Trainer<dt::DDP, dt::FP64>(quiet(1, 3)).validate(job, net, data);
  me.that(row.find("loss") != nullptr, "it is logged");
  me.near(std::abs(*row.find("loss") - expected), 1e-12, "the loss");
}

// ---- buffers

struct Normed : torch::nn::Module {
  dt::Unit<torch::nn::Linear> in = register_module("in", dt::Unit<torch::nn::Linear>(5, 6));
  dt::Unit<torch::nn::BatchNorm1d> norm = register_module("norm", dt::Unit<torch::nn::BatchNorm1d>(6));
  dt::Unit<torch::nn::Linear> out = register_module("out", dt::Unit<torch::nn::Linear>(6, 3));
  Tensor noise = register_buffer("noise", torch::zeros({4}));
  Tensor forward(const Tensor& x) { return out(torch::tanh(norm(in(x)*1000))); }
};

template <class S, class P>
std::vector<Tensor> buffers_after(Rank& me, Job<Normed>& job) {
  std::vector<Tensor> all;
  for (const Tensor& buffer : dt::Trainer<S, P>(quiet(1)).fit(job, data_for(me, 5)).model->buffers())
    all.push_back(buffer.clone());
  return all;
}

void buffers(Rank& me) {
  Job<Normed> job;
  job.optimizer = maker<dt::SGD>(dt::SGDOptions{.lr = 1e-3});
  const auto ddp = buffers_after<dt::DDP, dt::FP32>(me, job);
  const auto compare = [&](const std::vector<Tensor>& buffers, double tolerance, const std::string& what) {
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      me.that(me.same_everywhere(buffers[i]), what + ": buffers differ between ranks");
      if (!buffers[i].is_floating_point()) {
        me.that(torch::equal(buffers[i], ddp[i]), what + ": a counter");
        continue;
      }
      me.that(buffers[i].scalar_type() == kFloat32, what + ": running statistics are fp32");
      me.near(((buffers[i] - ddp[i]).abs() / (ddp[i].abs() + 1e-3)).max().item<double>(), tolerance, what);
    }
  };
  compare(ddp, 0, "ddp");
  compare(buffers_after<dt::Sharded<1>, dt::FP32>(me, job), 1e-5, "sharded-1");
  compare(buffers_after<dt::Sharded<2>, dt::FP32>(me, job), 1e-5, "sharded-2");
  compare(buffers_after<dt::FSDP, dt::FP32>(me, job), 1e-5, "fsdp");
  compare(buffers_after<dt::FSDP, dt::BF16Mixed>(me, job), 2e-2, "fsdp x bf16-mixed");
  compare(buffers_after<dt::DDP, dt::BF16Mixed>(me, job), 2e-2, "ddp x bf16-mixed");
}

void first_buffers(Rank& me) {
  Job<Normed> job;
  job.model = [&] {
    auto net = std::make_shared<Normed>();
    net->noise.fill_(me.rank() + 1);
    return net;
  };
  const auto look = [&](auto strategy) {
    int64_t calls = 0;
    job.loss = [&](Normed& net, const dt::Batch& batch, dt::StepContext&) {
      if (calls++ == 0) me.that(torch::equal(net.noise, torch::ones({4})), "the buffer begins as rank 0's");
      return mse(net.forward(batch.data), batch.target);
    };
    dt::Trainer<decltype(strategy), dt::FP32>(quiet(1)).fit(job, data_for(me, 1));
  };
  look(dt::DDP{});
  look(dt::Sharded<2>{});
  look(dt::FSDP{});
}

const std::vector<Case> cases{
    {"C-04 ten steps of Adam over odd shapes", shapes},
    {"C-94 every optimizer, clipped or not", every_optimizer},
    {"C-68 B011 B014 T15 groups by name, one of which most ranks own nothing of", groups},
    {"C-51 T49 T52 B030 B032 B035 clipping by the norm of all ranks", clipping},
    {"T50 clipping under the scaler", clipping_scaled},
    {"B031 sizes of buckets", bucket_sizes},
    {"B037 B041 B105 gradients are added up and divided once", divided_once},
    {"T58 B037 one reduction for each window", reduced_once},
    {"B036 a norm below the limit", small_norm},
    {"T57 step counts of optimizer and run", step_counts},
    {"C-93 P46 ranks that own nothing", owns_nothing},
    {"C-93 parts of equal size", balanced},
    {"C-95 a scheduler of LibTorch", schedules},
    {"C-96 two optimizers", two_optimizers},
    {"C-96 B098 gradients are with their owners", gradients_of_owners},
    {"B042 a branch for each micro-batch", branch_by_micro_batch},
    {"B016 optimizers in turn", optimizers_in_turn},
    {"C-31 C-94 C-96 C-97 what is trainable changes between steps and micro-batches", trainability},
    {"C-31 what is trainable changes, with masters", trainability_of_masters},
    {"C-13 recomputation under every strategy", recomputation},
    {"C-96 gradients of gradients", penalties},
    {"C-34 P40 gradients that DDP rounds once", reduced},
    {"B018 B027 bf16, mixed and true", low_formats},
    {"P16 masters", masters},
    {"B026 P35 an overflow on one rank", overflow_on_one},
    {"P1 groups that are added", added_groups},
    {"P1 ranks that add other groups", other_groups},
    {"P2 P5 a scaler for each loss", scaler_for_each_loss},
    {"P7 P69 apex_literal on ranks", apex_literal},
    {"B019 validation in fp64 before anything else", double_first},
    {"B022 B107 running statistics", buffers},
    {"B106 buffers begin as rank 0's", first_buffers},
};

}  // namespace

int main(int argc, char** argv) {
  return main_of_cases(argc, argv, cases);
}
