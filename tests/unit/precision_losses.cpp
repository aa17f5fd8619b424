// SPDX-License-Identifier: Apache-2.0
// Several losses with a scaler each, Apex's own behaviour against a transcript of its algorithm, and states of scalers
// and masters as values, on one device.
#include <catch2/catch.hpp>

#include <dovetail/run/weights.hpp>

#include <torch/optim.h>
#include <torch/utils.h>

#include <array>

#include "support/conformance_job.hpp"

namespace {

using namespace conformance;
using torch::kFloat32, torch::kHalf;

/// Its gradient for `parameter` is infinite, its value 0.
Tensor spoiler(const Tensor& parameter) {
  return (parameter - parameter.detach()).sqrt().sum().to(kFloat32);
}

// ---- several losses

struct TwoHeads : torch::nn::Module {
  torch::nn::Linear trunk = register_module("trunk", torch::nn::Linear(5, 6)),
                    a = register_module("a", torch::nn::Linear(6, 3)),
                    b = register_module("b", torch::nn::Linear(6, 3));
  std::array<Tensor, 2> losses(const dt::Batch& batch) {
    const Tensor hidden = torch::tanh(trunk(batch.data));
    return {mse(a(hidden), batch.target), mse(b(hidden).square(), batch.target)};
  }
};

/// Which loss is spoiled, through which parameter, at which micro-batch.
struct Spoil {
  int micro_batch = -1, loss = 0;
  std::string parameter = "trunk.bias";
};

const auto head_b = [](const std::string& name) { return name.starts_with("b."); };

/// `n` optimizers: the second one steps the second head.
template <int n>
struct TwoLosses {
  Spoil spoil{};
  int micro_batches = 0;
  auto configure_model() { return std::make_shared<TwoHeads>(); }
  auto configure_optimizers(const dt::Parameters& p) {
    if constexpr (n == 1)
      return dt::SGD(p, {.lr = 0.1, .momentum = 0.5});
    else
      return std::tuple(dt::SGD(p.where_not(head_b), {.lr = 0.1, .momentum = 0.5}),
                        dt::SGD(p.where(head_b), {.lr = 0.1, .momentum = 0.5}));
  }
  std::array<Tensor, 2> training_step(TwoHeads& net, const dt::Batch& batch, dt::StepContext&) {
    auto losses = net.losses(batch);
    if (micro_batches++ == spoil.micro_batch)
      losses[std::size_t(spoil.loss)] =
          losses[std::size_t(spoil.loss)] + spoiler(net.named_parameters()[spoil.parameter]);
    return losses;
  }
};

struct Seen {
  std::vector<Tensor> weights;                // at the start and after each step
  std::vector<std::array<double, 2>> scales;  // likewise
  std::vector<bool> skipped;
  double loss = 0;
};

template <class P, int n>
Seen train(TwoLosses<n> task, P precision, dt::TrainerOptions options) {
  Seen seen;
  Watch watch;
  const auto note = [&](dt::LoopState& state) {
    seen.weights.push_back(flat(*state.run.module));
    const auto& further = state.run.further_scalers;
    seen.scales.push_back({state.run.scaler ? state.run.scaler->scale() : 0, further.empty() ? 0 : further[0].scale()});
  };
  watch.start = note;
  watch.step = [&](dt::LoopState& state) {
    note(state);
    seen.skipped.push_back(state.step_skipped);
    if (state.step() == 1) seen.loss = state.loss;
  };
  fit<dt::SingleDevice, P>(options, task, rows(), watch, {}, precision);
  return seen;
}

/// The same in fp32 by hand; window `left_out` is not taken, by those optimizers that have the number of a 1 in
/// `which`.
Tensor by_hand(const dt::TrainerOptions& options, int left_out, std::array<bool, 2> which = {true, true}) {
  torch::manual_seed(options.seed);
  TwoHeads net;
  std::array<std::vector<Tensor>, 2> groups;
  for (const auto& item : net.named_parameters()) groups[head_b(item.key())].push_back(item.value());
  torch::optim::SGD first(groups[0], torch::optim::SGDOptions(0.1).momentum(0.5)),
      second(groups[1], torch::optim::SGDOptions(0.1).momentum(0.5));
  const auto data = rows();
  int step = 0;
  const int64_t window = options.batch_size * options.accumulate;
  for (int64_t epoch = 0; epoch < options.max_epochs; ++epoch)
    for (int64_t begin = 0; begin < data.size(); begin += window, ++step) {
      std::vector<int64_t> indices;
      for (int64_t i = begin; i < begin + window; ++i) indices.push_back(i);
      dt::Batch batch;
      data.fetch(indices, batch);
      net.zero_grad();
      const auto losses = net.losses(batch);
      (losses[0] + losses[1]).backward();
      if (step != left_out || !which[0]) first.step();
      if (step != left_out || !which[1]) second.step();
    }
  return flat(net);
}

dt::TrainerOptions six_steps(int64_t accumulate = 1) {
  auto options = quiet(accumulate);
  options.accumulate = accumulate;
  return options;
}

}  // namespace

TEST_CASE("P2 P3 each loss has a scaler: an overflow of one skips the step and moves its scale alone",
          "[conformance]") {
  static_assert(dt::detail::is_a_loss<std::array<Tensor, 2>, Tensor> &&
                !dt::detail::is_a_loss<std::array<int, 2>, Tensor>);
  const auto check = [](auto precision) {
    for (const int64_t accumulate : {1, 2})
      for (const int loss : {0, 1})
        for (const bool shared : {true, false}) {
          CAPTURE(accumulate, loss, shared);
          TwoLosses<1> task;
          const int within = accumulate > 1 && shared;  // the window's first or second micro-batch
          task.spoil = {int(2 * accumulate) + within, loss, shared ? "trunk.bias" : loss == 0 ? "a.bias" : "b.bias"};
          const auto options = six_steps(accumulate);
          const Seen seen = train(task, precision, options);
          REQUIRE(seen.weights.size() == 7);
          for (std::size_t i = 0; i < 6; ++i) {
            CHECK(seen.skipped[i] == (i == 2));
            CHECK(torch::equal(seen.weights[i], seen.weights[i + 1]) == (i == 2));
          }
          for (std::size_t i = 0; i < 7; ++i) {
            CHECK(seen.scales[i][std::size_t(loss)] == (i < 3 ? 64 : 32));
            CHECK(seen.scales[i][std::size_t(1 - loss)] == 64);
          }
          CHECK(apart(seen.weights.back(), by_hand(options, 2)) < 5e-3);
        }
  };
  check(dt::Apex<dt::O1>{{.init = 64}});
  check(dt::Apex<dt::O2>{{.init = 64}});
}

TEST_CASE("P5 of two optimizers only the one that the overflow reaches is skipped", "[conformance]") {
  const auto check = [](auto precision) {
    for (const std::string parameter : {"b.bias", "a.bias"})
      for (const int64_t accumulate : {1, 2}) {
        CAPTURE(parameter, accumulate);
        TwoLosses<2> task;
        task.spoil = {int(2 * accumulate), parameter == "b.bias", parameter};
        const auto options = six_steps(accumulate);
        const Seen seen = train(task, precision, options);
        const bool in_b = parameter == "b.bias";
        REQUIRE(seen.weights.size() == 7);
        const int64_t b = 3 * 6 + 3;  // the second head comes last
        const auto stands = [&](std::size_t i, bool second) {
          const auto cut = [&](const Tensor& w) {
            return second ? w.slice(0, w.size(0) - b) : w.slice(0, 0, w.size(0) - b);
          };
          return torch::equal(cut(seen.weights[i]), cut(seen.weights[i + 1]));
        };
        for (std::size_t i = 0; i < 6; ++i) {
          CHECK(stands(i, true) == (i == 2 && in_b));
          CHECK(stands(i, false) == (i == 2 && !in_b));
        }
        CHECK(seen.scales.back() == (in_b ? std::array<double, 2>{64, 32} : std::array<double, 2>{32, 64}));
        CHECK(apart(seen.weights.back(), by_hand(options, 2, {!in_b, in_b})) < 5e-3);
      }
  };
  check(dt::Apex<dt::O1>{{.init = 64}});
  check(dt::Apex<dt::O2>{{.init = 64}});
}

TEST_CASE("P2 gradients of losses with different scales add up to the bit", "[conformance]") {
  const auto check = [](auto fixed, auto moving) {
    for (const int64_t accumulate : {1, 3}) {
      auto options = six_steps(accumulate);
      // At the first step a loss whose scale goes down, then scales that rise after every step.
      TwoLosses<1> task;
      task.spoil = {0, 1};
      const Seen seen = train(task, moving, options), same = train(task, fixed, options);
      CHECK(seen.scales.back() != same.scales.back());
      CHECK(seen.scales.back()[0] == 2 * seen.scales.back()[1] * (1 + seen.skipped[0]));
      CHECK(torch::equal(seen.weights.back(), same.weights.back()));
    }
  };
  check(dt::Apex<dt::O1>{{.init = 256, .interval = 1000}}, dt::Apex<dt::O1>{{.init = 256, .interval = 1}});
  check(dt::Apex<dt::O2>{{.init = 256, .interval = 1000}}, dt::Apex<dt::O2>{{.init = 256, .interval = 1}});
}

TEST_CASE("P2 other precisions take the sum of a Task's losses", "[conformance]") {
  TwoLosses<1> task;
  const Seen plain = train(task, dt::FP32{}, six_steps());
  CHECK(apart(plain.weights.back(), by_hand(six_steps(), -1)) < 1e-6);
  const Seen scaled = train(task, dt::FP16Mixed{{.init = 64}}, six_steps());
  CHECK(scaled.scales.back() == std::array<double, 2>{64, 0});
  CHECK(apart(scaled.weights.back(), plain.weights.back()) < 5e-3);
  const Seen apex = train(task, dt::Apex<dt::O1>{{.init = 64}}, six_steps());
  CHECK(apex.scales.back() == std::array<double, 2>{64, 64});
  CHECK(apex.loss == Approx(plain.loss).epsilon(1e-2));
  CHECK(train(task, dt::Apex<dt::O3>{}, six_steps()).scales.back() == std::array<double, 2>{0, 0});
}

// ---- Apex's own behaviour

namespace {

struct Small : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(5, 4)),
                    out = register_module("out", torch::nn::Linear(4, 3));
  Tensor loss(const Tensor& data, const Tensor& target) { return mse(out(torch::tanh(in(data))), target); }
};

/// What is seen at each micro-batch (its scale, before it) and after each step.
struct Steps {
  std::vector<double> scales;                // of each micro-batch
  std::vector<std::vector<Tensor>> masters;  // after each step
  std::vector<bool> skipped;
};

constexpr int64_t apex_interval = 3;
const dt::ApexOptions apex_options{.init = 512, .interval = int(apex_interval), .apex_literal = true};

bool is_spoiled(int micro_batch) {
  return micro_batch == 3 || micro_batch == 8 || micro_batch == 14;
}

/// The algorithm of NVIDIA/apex, amp level O2, as it was published: `scale_loss` enters and exits around each backward,
/// `_process_optimizer` keeps masters, `LossScaler.update_scale` moves the scale. With `delays`, all micro-batches of a
/// window but the last are within delay_unscale = True.
Steps transcript(const dt::TrainerOptions& options, bool delays) {
  torch::manual_seed(options.seed);
  const auto made = std::make_shared<Small>();
  Small& model = *made;
  dt::convert_model(model, kHalf, true);
  std::vector<Tensor> halves = model.parameters(), masters;
  dt::Parameters list;
  for (const Tensor& half : halves) {
    masters.push_back(half.detach().clone().to(kFloat32).requires_grad_(true));
    list.push_back({"", half.sizes().vec(), masters.back()});
  }
  dt::SGD optimizer(list, {.lr = 0.1, .momentum = 0.9});
  double scale = std::min(std::pow(2.0, 24), apex_options.init);
  int64_t unskipped = 0;
  bool skips = false;  // is optimizer.step the skipper?
  const auto drop = [](std::vector<Tensor>& tensors) {
    for (Tensor& tensor : tensors) tensor.mutable_grad().reset();
  };
  Steps steps;
  const auto data = rows();
  int micro_batch = 0;
  for (int64_t epoch = 0; epoch < options.max_epochs; ++epoch)
    for (int64_t begin = 0; begin < data.size(); begin += options.batch_size, ++micro_batch) {
      std::vector<int64_t> indices;
      for (int64_t i = begin; i < begin + options.batch_size; ++i) indices.push_back(i);
      dt::Batch batch;
      data.fetch(indices, batch);
      const int64_t within = micro_batch % options.accumulate;
      const bool last = within + 1 == options.accumulate;
      if (!delays || within == 0) drop(halves);  // _prepare_backward
      steps.scales.push_back(scale);
      Tensor loss = model.loss(batch.data.to(kHalf), batch.target);
      if (is_spoiled(micro_batch)) loss = loss + spoiler(model.in->bias);
      (loss.to(kFloat32) * scale).backward();
      if (!delays || last) {  // _post_backward
        bool overflow = false;
        for (const Tensor& half : halves) overflow |= !torch::isfinite(half.grad()).all().item<bool>();
        torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < halves.size(); ++i) {
          const Tensor unscaled = halves[i].grad().to(kFloat32) * (1 / scale);
          Tensor& gradient = masters[i].mutable_grad();
          gradient = gradient.defined() ? unscaled + gradient : unscaled;
        }
        if (overflow) {
          scale = scale / 2;
          unskipped = 0;
          skips = true;
        } else {
          ++unskipped;
        }
        if (unskipped == apex_interval) {
          scale = std::min(std::pow(2.0, 24), scale * 2);
          unskipped = 0;
        }
      }
      if (!last) continue;
      steps.skipped.push_back(skips);
      if (!skips) {
        optimizer.step(double(options.accumulate));  // the mean over the window, which Apex leaves to the user
        torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < halves.size(); ++i) halves[i].copy_(masters[i]);
      }
      skips = false;
      drop(masters);
      drop(halves);  // zero_grad
      steps.masters.emplace_back();
      for (const Tensor& master : masters) steps.masters.back().push_back(master.detach().clone());
    }
  return steps;
}

Steps under(const dt::ApexOptions& apex, const dt::TrainerOptions& options) {
  Steps steps;
  dt::RunContext* run = nullptr;
  Job<Small> job;
  job.optimizer = maker<dt::SGD>(dt::SGDOptions{.lr = 0.1, .momentum = 0.9});
  job.loss = [&, n = 0](Small& net, const dt::Batch& batch, dt::StepContext&) mutable {
    steps.scales.push_back(run->scaler->scale());
    const Tensor loss = net.loss(batch.data, batch.target);
    return is_spoiled(n++) ? loss + spoiler(net.in->bias) : loss;
  };
  Watch watch;
  watch.start = [&](dt::LoopState& state) { run = &state.run; };
  watch.step = [&](dt::LoopState& state) {
    steps.skipped.push_back(state.step_skipped);
    steps.masters.emplace_back();
    for (const dt::Parameter& master : dt::masters(state.run))
      steps.masters.back().push_back(master.tensor.detach().clone());
  };
  fit<dt::SingleDevice, dt::Apex<dt::O2>>(options, job, rows(), watch, {}, dt::Apex<dt::O2>{apex});
  return steps;
}

double apart(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double most = a.size() == b.size() && a.size() == 4 ? 0 : HUGE_VAL;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) most = std::max(most, conformance::apart(a[i], b[i]));
  return most;
}

}  // namespace

TEST_CASE("P1 P7 P69 apex_literal is the published algorithm, to the bit", "[conformance]") {
  for (const int64_t accumulate : {1, 2, 3}) {
    CAPTURE(accumulate);
    auto options = quiet(4);
    options.accumulate = accumulate;
    const Steps expected = transcript(options, false), ours = under(apex_options, options);
    REQUIRE(expected.scales.size() == 24);
    CHECK(ours.scales == expected.scales);
    CHECK(ours.skipped == expected.skipped);
    REQUIRE(ours.masters.size() == expected.masters.size());
    REQUIRE(ours.masters.size() == std::size_t(24 / accumulate));
    for (std::size_t i = 0; i < ours.masters.size(); ++i) {
      INFO("step " << i);
      CHECK(apart(ours.masters[i], expected.masters[i]) == 0);
    }
    std::size_t skips = 0, moved_within = 0;
    for (const bool skipped : ours.skipped) skips += skipped;
    for (std::size_t i = 0; i < 24; ++i)
      moved_within += int64_t(i) % accumulate != 0 && ours.scales[i] != ours.scales[i - 1];
    CHECK(skips == 3);
    CHECK((moved_within > 0) == (accumulate > 1));
  }
}

TEST_CASE("P1 P7 P69 without apex_literal scales and skips are those of delay_unscale, sums are better",
          "[conformance]") {
  for (const int64_t accumulate : {1, 2}) {
    CAPTURE(accumulate);
    auto options = quiet(4);
    options.accumulate = accumulate;
    auto better = apex_options;
    better.apex_literal = false;
    const Steps expected = transcript(options, true), ours = under(better, options);
    CHECK(ours.scales == expected.scales);
    CHECK(ours.skipped == expected.skipped);
    REQUIRE(ours.masters.size() == expected.masters.size());
    CHECK(apart(ours.masters.back(), expected.masters.back()) > 0);  // masters that start unrounded, sums in fp32
    CHECK(apart(ours.masters.back(), expected.masters.back()) < 3e-3);
  }
}

TEST_CASE("P19 the scale of apex_literal ends at 2^24", "[conformance]") {
  auto options = quiet(2);
  Job<Small> job;
  job.loss = [](Small& net, const dt::Batch& batch, dt::StepContext&) {
    return net.loss(batch.data, batch.target) * 1e-7;
  };
  const auto last = [&](bool literal) {
    double scale = 0;
    Watch watch;
    watch.step = [&](dt::LoopState& state) { scale = state.run.scaler->scale(); };
    dt::ApexOptions apex{.init = 0x1p22, .interval = 1, .apex_literal = literal};
    fit<dt::SingleDevice, dt::Apex<dt::O2>>(options, job, rows(), watch, {}, dt::Apex<dt::O2>{apex});
    return scale;
  };
  CHECK(last(true) == 0x1p24);
  CHECK(last(false) == 0x1p34);
}

// ---- states as values

TEST_CASE("P21 P65 a scaler goes on where another one was, also with another interval", "[conformance]") {
  const std::string steps = "..x...x......xx...";
  for (std::size_t at = 0; at <= steps.size(); ++at) {
    const dt::ScalerOptions options{.init = 256, .interval = 3};
    dt::GradScaler whole(options), first(options), second(options);
    for (std::size_t i = 0; i < at; ++i) first.update(steps[i] == 'x');
    second.load(first.state());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      whole.update(steps[i] == 'x');
      if (i < at) continue;
      second.update(steps[i] == 'x');
      if (i + 1 == steps.size()) CHECK(second.scale() == whole.scale());
    }
    CHECK(second.state().growth_tracker == whole.state().growth_tracker);
  }
  // The state of a scaler that has counted to 1500 of 2000 meets an interval of 1000: the next good step grows it.
  dt::GradScaler shorter({.init = 1, .interval = 1000}), longer({.init = 1, .interval = 1600});
  for (dt::GradScaler* scaler : {&shorter, &longer}) scaler->load({.scale = 4096, .growth_tracker = 1500});
  shorter.update(false);
  CHECK(shorter.scale() == 8192);
  CHECK(shorter.state().growth_tracker == 0);
  for (int i = 0; i < 99; ++i) longer.update(false);
  CHECK(longer.scale() == 4096);
  longer.update(false);
  CHECK(longer.scale() == 8192);

  // At the floor, the overflows in a row go on being counted.
  dt::GradScaler floor;
  floor.load({.scale = dt::GradScaler::smallest_scale, .skipped_at_smallest = 7});
  floor.update(true);
  CHECK(floor.skipped_at_smallest() == 8);
  for (const dt::GradScaler::State wrong : {dt::GradScaler::State{.scale = 0},
                                            {.scale = HUGE_VAL},
                                            {.scale = std::nan("")},
                                            {.scale = 1, .growth_tracker = -1}}) {
    try {
      floor.load(wrong);
      FAIL("taken");
    } catch (const dt::Error& error) {
      CHECK(error.code() == dt::ExitCode::checkpoint);
    }
  }
  CHECK(floor.skipped_at_smallest() == 8);
}

namespace {

/// What would be saved.
struct Saved {
  dt::GradScaler::State scaler;
  std::vector<std::pair<std::string, Tensor>> masters;
  Tensor weights;
};

template <class S, class P>
void resumes(P precision) {
  INFO(S::name << " x " << P::name);
  Job<> job;
  job.loss = [](Net& net, const dt::Batch& batch, dt::StepContext&) {
    return mse(net.forward(batch.data), batch.target);
  };
  const auto train = [&](int64_t epochs, const Saved* from) {
    Saved saved;
    Watch watch;
    watch.start = [&](dt::LoopState& state) {
      if (!from) return;
      if (state.run.scaler) state.run.scaler->load(from->scaler);
      torch::NoGradGuard no_grad;
      const dt::Parameters masters = dt::masters(state.run);
      REQUIRE(masters.size() == from->masters.size());
      for (std::size_t i = 0; i < masters.size(); ++i) {
        CHECK(masters[i].name == from->masters[i].first);
        masters[i].tensor.copy_(from->masters[i].second);
      }
      dt::round_masters(state.run);
    };
    watch.step = [&](dt::LoopState& state) {
      if (state.run.scaler) saved.scaler = state.run.scaler->state();
      saved.masters.clear();
      for (const dt::Parameter& master : dt::masters(state.run))
        saved.masters.emplace_back(master.name, master.tensor.detach().clone());
    };
    saved.weights = fit<S, P>(quiet(epochs), job, rows(12), watch, {}, precision).weights;
    return saved;
  };
  const Saved whole = train(4, nullptr), half = train(2, nullptr), resumed = train(2, &half);
  CHECK(half.masters.size() == 5);
  CHECK(torch::equal(whole.weights, resumed.weights));
  for (std::size_t i = 0; i < 5; ++i) CHECK(torch::equal(whole.masters[i].second, resumed.masters[i].second));
  CHECK(whole.scaler.scale == resumed.scaler.scale);
  CHECK(whole.scaler.growth_tracker == resumed.scaler.growth_tracker);
  // From the rounded weights alone it would be another run.
  Saved rounded = half;
  for (auto& [name, master] : rounded.masters) master = master.to(kHalf).to(kFloat32);
  CHECK_FALSE(torch::equal(whole.masters[0].second, train(2, &rounded).masters[0].second));
}

}  // namespace

TEST_CASE("P6 P67 a run that goes on from the values of masters and scaler is the same to the bit", "[conformance]") {
  const dt::ApexOptions apex{.init = 64, .interval = 4};
  resumes<dt::SingleDevice>(dt::Apex<dt::O2>{apex});
  resumes<dt::Sharded<1>>(dt::MasterWeights<dt::BF16>{});
  resumes<dt::FSDP>(dt::MasterWeights<dt::FP16>{{.init = 64, .interval = 4}});
}

TEST_CASE("P8 exported weights are fp32, from masters where there are some", "[conformance]") {
  struct Mixed : torch::nn::Module {
    torch::nn::Linear in = register_module("in", torch::nn::Linear(5, 4));
    torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
    torch::nn::Linear out = register_module("out", torch::nn::Linear(4, 3));
    Tensor frozen = register_parameter("frozen", torch::ones({2}), false);
    Tensor forward(const Tensor& x) { return out(norm(in(x))); }
  };
  Job<Mixed> job;
  Watch watch;
  int64_t looked = 0;
  watch.step = [&](dt::LoopState& state) {
    const dt::Parameters weights = dt::fp32_weights(state.run);
    const auto named = [&](const dt::Parameters& list, const std::string& name) {
      const auto found = list.where([&](const std::string& other) { return other == name; });
      REQUIRE(found.size() == 1);
      return found[0].tensor;
    };
    CHECK(weights.size() == 7 + 3);  // with the buffers of batch norm
    for (const dt::Parameter& weight : weights)
      if (weight.tensor.is_floating_point()) CHECK(weight.tensor.scalar_type() == kFloat32);
    const Tensor weight = named(weights, "in.weight");
    const Tensor model = state.run.module->named_parameters()["in.weight"];
    CHECK(torch::equal(weight.to(model.scalar_type()), model.detach()));
    const auto masters = dt::masters(state.run);
    if (!masters.empty()) {
      CHECK(masters.size() == 4);  // batch norm is fp32 as it is
      CHECK(torch::equal(weight, named(masters, "in.weight").detach()));
      CHECK_FALSE(torch::equal(weight, model.detach().to(kFloat32)));
    }
    torch::NoGradGuard no_grad;
    weight.zero_();  // a copy: training goes on
    ++looked;
  };
  fit<dt::SingleDevice, dt::Apex<dt::O2>>(quiet(), job, rows(), watch, {}, dt::Apex<dt::O2>{{.init = 64}});
  fit<dt::SingleDevice, dt::Apex<dt::O3>>(quiet(), job, rows(), watch);
  CHECK(looked == 24);
}
