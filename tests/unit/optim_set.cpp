// SPDX-License-Identifier: Apache-2.0
// What configure_optimizers may return, schedules, clipping, and the merging of neighbours.

#include <dovetail/optim/adamw.hpp>
#include <dovetail/optim/clip.hpp>
#include <dovetail/optim/optimizer_set.hpp>
#include <dovetail/optim/sgd.hpp>

#include <torch/optim.h>
#include <torch/utils.h>

#include <catch2/catch.hpp>

#include <cmath>
#include <functional>
#include <limits>

namespace dt = dovetail;

namespace {

torch::Tensor leaf(std::vector<int64_t> shape, double value = 1) {
  return torch::full(shape, value, torch::kFloat32).set_requires_grad(true);
}

dt::Parameters two() {
  return dt::Parameters({{"layer.weight", {2, 2}, leaf({2, 2})}, {"layer.bias", {2}, leaf({2})}});
}

const auto is_weight = [](const std::string& name) { return name.ends_with("weight"); };

void take_steps(dt::OptimizerSet& set, int count) {
  for (int i = 0; i < count; ++i) {
    for (dt::OptimizerEntry& entry : set) entry.step(1);
    set.advance_schedules();
  }
}

double rate(dt::OptimizerSet& set, std::size_t k = 0, std::size_t group = 0) {
  return set[k].base().param_groups()[group].options().get_lr();
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const dt::Error& error) {
    REQUIRE(error.code() == dt::ExitCode::user_code);
    return error.what();
  }
  return "";
}

std::vector<int64_t> sizes(const std::vector<torch::Tensor>& tensors) {
  std::vector<int64_t> numels;
  for (const auto& tensor : tensors) numels.push_back(tensor.numel());
  return numels;
}

struct Constant {
  double value;
  double factor(int64_t) const { return value; }
};

using Types = dt::optimizer_types_of<std::tuple<dt::SGD, dt::Scheduled<std::unique_ptr<torch::optim::LBFGS>, Constant>,
                                                std::shared_ptr<torch::optim::Optimizer>>>;
static_assert(std::is_same_v<Types, dt::OptimizerTypes<dt::SGD, torch::optim::LBFGS, torch::optim::Optimizer>>);
static_assert(dt::OptimizerResult<dt::AdamW> && dt::OptimizerResult<std::unique_ptr<torch::optim::SGD>>);
static_assert(!dt::OptimizerResult<int> && !dt::OptimizerResult<std::tuple<>> &&
              !dt::OptimizerResult<std::tuple<dt::SGD, int>>);
static_assert(dt::optimizer_traits<dt::AdamW>.elementwise && dt::optimizer_traits<torch::optim::RMSprop>.elementwise);
static_assert(dt::optimizer_traits<torch::optim::LBFGS>.requires_closure &&
              !dt::optimizer_traits<torch::optim::LBFGS>.elementwise);
static_assert(!dt::optimizer_traits<torch::optim::Optimizer>.elementwise);

}  // namespace

TEST_CASE("parameters are shared out by name", "[optim]") {
  const auto p = two();
  CHECK(p.where(is_weight).size() == 1);
  CHECK(p.where_not(is_weight)[0].name == "layer.bias");
  CHECK(p.tensors()[1].is_same(p[1].tensor));
}

TEST_CASE("neighbours in storage are merged whatever the order of the list", "[optim]") {
  const torch::Tensor data = torch::arange(20, torch::kFloat32), grads = torch::arange(20, torch::kFloat32) * 10;
  const auto cut = [](const torch::Tensor& from, int64_t at, std::vector<int64_t> shape) {
    return from.narrow(0, at, torch::numel(torch::empty(shape))).view(shape);
  };
  // In memory: c = [0, 6), a = [6, 10), b = [10, 13), a gap, d = [15, 20); an empty one and one of another storage.
  const std::vector<torch::Tensor> params = {cut(data, 6, {2, 2}), cut(data, 10, {3}), torch::empty({0}),
                                             cut(data, 0, {2, 3}), cut(data, 15, {5}), torch::ones({2, 2})};
  const auto flats = dt::merge_adjacent(params);
  CHECK(sizes(flats) == std::vector<int64_t>{13, 5, 4});
  CHECK(torch::equal(flats[0], data.narrow(0, 0, 13)));

  // The gradients of c and a are adjacent, that of b lies elsewhere.
  std::vector<torch::Tensor> gradients = {cut(grads, 6, {2, 2}), cut(grads, 17, {3}), torch::empty({0}),
                                          cut(grads, 0, {2, 3}), torch::ones({5}),    torch::ones({2, 2})};
  const auto runs = dt::merge_adjacent(params, gradients);
  REQUIRE(runs.size() == 4);
  CHECK(runs[0].members == std::vector<std::size_t>{3, 0});
  CHECK(torch::equal(runs[0].param, data.narrow(0, 0, 10)));
  CHECK(torch::equal(runs[0].grad, grads.narrow(0, 0, 10)));
  CHECK(runs[1].members == std::vector<std::size_t>{1});
  CHECK(runs[1].param.is_same(params[1]));
  runs[0].param[9] = -1;  // the same memory
  CHECK(params[0][1][1].item<float>() == -1);

  const auto bytes = torch::zeros({8}, torch::kFloat32);
  CHECK(dt::merge_adjacent({bytes.narrow(0, 0, 4), bytes.view(torch::kInt32).narrow(0, 4, 4)}).size() == 2);
}

TEST_CASE("every form of result becomes a set, in order", "[optim]") {
  const auto p = two();
  dt::OptimizerSet one(dt::AdamW(p, {.lr = 0.5}));
  CHECK(one.size() == 1);
  CHECK(one[0].fused() != nullptr);
  CHECK(one[0].traits().elementwise);
  dt::OptimizerSet several(std::tuple(dt::scheduled(std::make_unique<dt::SGD>(p.where(is_weight)), Constant{0.25}),
                                      std::make_shared<torch::optim::Adam>(p.where_not(is_weight).tensors())));
  CHECK(several.size() == 2);
  CHECK(several[0].type() == "dovetail::SGD");
  CHECK(several[1].type() == "torch::optim::Adam");
  CHECK(several[1].fused() == nullptr);
  several.check_holds_only(p);
  several.bind_schedules();
  CHECK(rate(several, 0) == Approx(0.25e-3));
  CHECK(refusal([] { dt::OptimizerSet(std::unique_ptr<dt::SGD>()); }) ==
        "configure_optimizers returned a null pointer; return an optimizer.");
}

TEST_CASE("the divisor reaches ours and others alike", "[optim]") {
  const auto p = two();
  dt::OptimizerSet set(std::tuple(dt::SGD(p.where(is_weight), {.lr = 1}),
                                  torch::optim::SGD(p.where_not(is_weight).tensors(), torch::optim::SGDOptions(1.0))));
  for (const auto& parameter : p) parameter.tensor.mutable_grad() = torch::full_like(parameter.tensor.detach(), 2);
  for (dt::OptimizerEntry& entry : set) entry.step(4);
  for (const auto& parameter : p) CHECK((parameter.tensor == 0.5).all().item<bool>());
}

TEST_CASE("pieces and masters take the place of parameters", "[optim]") {
  const auto whole = leaf({8});
  const auto piece = leaf({3}), other = leaf({4});
  dt::OptimizerSet set(std::tuple(dt::AdamW(dt::Parameters({{"whole", {8}, whole}}), {.lr = 1e-2}),
                                  torch::optim::Adagrad({other}, torch::optim::AdagradOptions(0.1)),
                                  torch::optim::SGD({leaf({2})}, torch::optim::SGDOptions(0.5))));
  dt::FusedOptimizer& ours = *set[0].fused();
  const auto step = [&](std::size_t k, const torch::Tensor& tensor) {
    tensor.mutable_grad() = torch::ones_like(tensor.detach());
    set[k].step(1);
  };
  set[0].exchange({{whole.unsafeGetTensorImpl(), {"part", {8}, piece}}});
  step(0, piece);
  CHECK(ours.name_of(piece) == "part");
  CHECK(ours.name_of(whole) == "");
  CHECK(ours.state_of(piece).steps == 1);
  const auto master = piece.detach().to(torch::kFloat64).set_requires_grad(true);
  set[0].exchange({{piece.unsafeGetTensorImpl(), {"part", {8}, master}}, {other.unsafeGetTensorImpl(), {}}});
  step(0, master);
  CHECK(ours.state_of(master).steps == 2);
  CHECK(torch::allclose(ours.state_of(master).tensors[0].second, torch::full({3}, 0.19, torch::kFloat64)));

  // LibTorch's Adagrad: the accumulator of its constructor goes, one that was filled stays with its tensor.
  const auto half = leaf({2}), same = leaf({2});
  set[1].exchange({{other.unsafeGetTensorImpl(), {"other", {4}, half}}});
  step(1, half);
  const auto sum = [&](const torch::Tensor& tensor) {
    return static_cast<torch::optim::AdagradParamState&>(*set[1].base().state().at(tensor.unsafeGetTensorImpl())).sum();
  };
  CHECK(torch::equal(sum(half), torch::ones({2})));
  set[1].exchange({{half.unsafeGetTensorImpl(), {"other", {4}, same}}});
  step(1, same);
  CHECK(torch::equal(sum(same), torch::full({2}, 2.0)));
  CHECK(set[1].base().state().size() == 1);

  // Masters of one that is not ours are rounded after its step, and not any more once another takes their place.
  const auto low = torch::zeros({2}, torch::kBFloat16), stepped = torch::full({2}, 1.001f).set_requires_grad(true);
  const auto held = set[2].base().param_groups()[0].params()[0];
  set[2].exchange({{held.unsafeGetTensorImpl(), {"w", {2}, stepped}}});
  set[2].publish_into(stepped, low);
  step(2, stepped);
  CHECK(torch::equal(low, (stepped.detach()).to(torch::kBFloat16)));
  CHECK(low[0].item<double>() == 0.5);
  const auto next = leaf({2}, 3);
  set[2].exchange({{stepped.unsafeGetTensorImpl(), {"w", {2}, next}}});
  step(2, next);
  CHECK((next == 2.5).all().item<bool>());
  CHECK(low[0].item<double>() == 0.5);
}

TEST_CASE("a group that is added has options of its optimizer, in their range", "[optim]") {
  dt::OptimizerSet set(std::tuple(dt::scheduled(dt::SGD(two(), {.lr = 1, .momentum = 0.5}), Constant{0.25}),
                                  torch::optim::Adam(two().tensors(), torch::optim::AdamOptions(0.1))));
  set.bind_schedules();
  const auto more = two();
  set[0].add_param_group(more.where(is_weight), dt::SGDOptions{.lr = 8});
  set[0].add_param_group(more.where_not(is_weight));
  CHECK(set[0].held() == 7);
  set[0].schedule()->groups_added();
  CHECK(rate(set, 0, 0) == 0.25);
  CHECK(rate(set, 0, 1) == 2);
  set[1].add_param_group(two(), torch::optim::AdamOptions(0.2));
  CHECK(rate(set, 1, 1) == 0.2);
  CHECK(refusal([&] { set[0].add_param_group(two(), dt::SGDOptions{.lr = -1}); }) ==
        "SGD: lr must not be negative, got -1.000000.");
  CHECK(refusal([&] { set[0].add_param_group(two(), torch::optim::SGDOptions(1)); }) ==
        "dovetail::SGD was given a group with the options of another optimizer: torch::optim::SGDOptions. Leave them "
        "out or use this one's.");
  CHECK(set[0].held() == 7);
}

TEST_CASE("an optimizer over anything else is refused", "[optim]") {
  const auto p = two(), other = two();
  const auto told = [&](auto optimizer) {
    return refusal([&] { dt::OptimizerSet(std::move(optimizer)).check_holds_only(p); });
  };
  CHECK(told(dt::AdamW(p)) == "");
  CHECK(told(torch::optim::SGD(other.tensors(), torch::optim::SGDOptions(0.1))) ==
        "optimizer 0 (torch::optim::SGD) holds a tensor that may not be optimized here: shape [2, 2], entry 0 of group "
        "0. Make it in "
        "configure_optimizers, from the Parameters given there, or add a group from run.parameters(), and use nothing "
        "else.");
  CHECK_THAT(told(dt::AdamW({{p, {}}, {other.where_not(is_weight), {}}})),
             Catch::Contains("here: 'layer.bias', shape [2], entry 0 of group 1."));
  CHECK(told(torch::optim::AdamW(std::vector<torch::Tensor>{})) ==
        "optimizer 0 (torch::optim::AdamW) holds no parameters: nothing would be trained. Give it some of the "
        "Parameters that "
        "configure_optimizers gets.");
  CHECK_THAT(told(dt::SGD(p.where([](const std::string&) { return false; }))),
             Catch::Contains("(dovetail::SGD) holds no parameters"));
  CHECK(told(std::tuple(dt::SGD(p), dt::AdamW(p.where(is_weight)))) ==
        "optimizer 1 (dovetail::AdamW) holds 'layer.weight', which optimizer 0 holds too.");
}

TEST_CASE("schedules follow their formulas", "[optim]") {
  const dt::WarmupCosine cosine{.warmup_steps = 4, .total_steps = 12, .min_factor = 0.1};
  CHECK(cosine.factor(0) == Approx(0.25));
  CHECK(cosine.factor(3) == Approx(1));
  CHECK(cosine.factor(4) == Approx(1));
  CHECK(cosine.factor(8) == Approx(0.55));
  CHECK(cosine.factor(6) == Approx(0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2));
  CHECK(cosine.factor(12) == Approx(0.1));
  CHECK(cosine.factor(1000) == Approx(0.1));
  const dt::LinearDecay linear{.warmup_steps = 2, .total_steps = 12};
  CHECK(linear.factor(0) == Approx(0.5));
  CHECK(linear.factor(2) == Approx(1));
  CHECK(linear.factor(7) == Approx(0.5));
  CHECK(linear.factor(12) == Approx(0).margin(1e-15));
  const dt::StepDecay steps{.every = 10, .gamma = 0.5};
  CHECK(steps.factor(9) == 1);
  CHECK(steps.factor(10) == 0.5);
  CHECK(steps.factor(39) == 0.125);
}

TEST_CASE("a schedule scales what each group began with", "[optim]") {
  const auto p = two();
  dt::OptimizerSet set(dt::scheduled(dt::AdamW({{p.where(is_weight), {.lr = 1}}, {p.where_not(is_weight), {.lr = 4}}}),
                                     dt::LinearDecay{.total_steps = 10}));
  CHECK(rate(set, 0, 1) == 4);
  set.bind_schedules();
  take_steps(set, 5);
  set.epochs_ended(1);
  CHECK(rate(set, 0, 0) == Approx(0.5));
  CHECK(rate(set, 0, 1) == Approx(2));
  dt::OptimizerSet by_epoch(
      dt::scheduled(dt::SGD(p, {.lr = 1}), dt::StepDecay{.every = 1, .gamma = 0.1}, {.interval = dt::Interval::epoch}));
  by_epoch.bind_schedules();
  take_steps(by_epoch, 7);
  CHECK(rate(by_epoch) == 1);
  by_epoch.epochs_ended(2);
  CHECK(rate(by_epoch) == Approx(0.01));
}

TEST_CASE("a schedule counts the steps of its own optimizer", "[optim]") {
  const auto p = two();
  const auto by_libtorch = [](torch::optim::Optimizer& optimizer) { return torch::optim::StepLR(optimizer, 1, 0.5); };
  dt::OptimizerSet set(
      std::tuple(dt::scheduled(dt::SGD(p.where(is_weight), {.lr = 1}), dt::StepDecay{.every = 1, .gamma = 0.5}),
                 dt::scheduled(dt::SGD(p.where_not(is_weight), {.lr = 1}), by_libtorch)));
  set.bind_schedules();
  set.advance_schedules();  // nobody stepped
  CHECK(rate(set, 0) == 1);
  CHECK(rate(set, 1) == 1);
  for (int i = 0; i < 3; ++i) {  // the other one skips, as after an overflow
    set[0].step(1);
    set.advance_schedules();
  }
  CHECK(rate(set, 0) == 0.125);
  CHECK(rate(set, 1) == 1);
  take_steps(set, 3);
  CHECK(rate(set, 0) == 1.0 / 64);
  CHECK(rate(set, 1) == 0.25);  // LibTorch's first step only counts
}

TEST_CASE("LibTorch's schedulers work on ours", "[optim]") {
  const auto p = two();
  const auto factory = [](torch::optim::Optimizer& optimizer) { return torch::optim::StepLR(optimizer, 2, 0.5); };
  dt::OptimizerSet set(std::tuple(
      dt::scheduled(dt::SGD(p.where(is_weight), {.lr = 1}), factory),
      dt::scheduled(dt::SGD(p.where_not(is_weight), {.lr = 1}), factory, {.interval = dt::Interval::epoch})));
  set.bind_schedules();
  torch::optim::SGD peer(two().tensors(), torch::optim::SGDOptions(1.0));
  torch::optim::StepLR by_hand(peer, 2, 0.5);
  const auto expected = [&] { return peer.param_groups()[0].options().get_lr(); };
  for (int count = 1; count <= 7; ++count) {
    by_hand.step();
    take_steps(set, 1);
    CHECK(rate(set, 0) == expected());
    CHECK(rate(set, 1) == 1);
  }
  CHECK(expected() == 0.125);  // LibTorch's first step only counts
  for (int count = 1; count <= 3; ++count) set.epochs_ended(count);
  CHECK(rate(set, 0) == 0.125);
  CHECK(rate(set, 1) == 0.5);

  const auto by_pointer = [](torch::optim::Optimizer& optimizer) {
    return std::make_unique<torch::optim::StepLR>(optimizer, 1, 0.5);
  };
  dt::OptimizerSet pointed(dt::scheduled(dt::SGD(p, {.lr = 1}), by_pointer));
  pointed.bind_schedules();
  take_steps(pointed, 2);
  CHECK(rate(pointed) == 0.5);
}

TEST_CASE("a plateau cuts as LibTorch's does", "[optim]") {
  for (auto mode : {dt::Mode::min, dt::Mode::max}) {
    const auto p = two();
    const double sign = mode == dt::Mode::min ? 1 : -1;
    const auto peer = [mode](torch::optim::Optimizer& optimizer) {
      using Peer = torch::optim::ReduceLROnPlateauScheduler;
      return Peer(optimizer, mode == dt::Mode::min ? Peer::min : Peer::max, 0.5, 2, 1e-4, Peer::rel, 1);
    };
    dt::OptimizerSet set(std::tuple(
        dt::scheduled(dt::SGD(p.where(is_weight), {.lr = 1}),
                      dt::Plateau{.monitor = "loss", .mode = mode, .factor = 0.5, .patience = 2, .cooldown = 1}),
        dt::scheduled(dt::SGD(p.where_not(is_weight), {.lr = 1}), peer, {.monitor = "loss"})));
    set.bind_schedules();
    double metric = 0;
    const auto look_up = [&](const std::string& name) { return name == "loss" ? &metric : nullptr; };
    for (double value : {5.0, 4.0, 4.0, 4.1, 4.0, 4.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 2.0}) {
      metric = 10 + sign * value;
      set.validated(look_up);
      CHECK(rate(set, 0) == Approx(rate(set, 1)));
    }
    CHECK(rate(set) == Approx(0.125));
    CHECK(refusal([&] { set.validated([](const std::string&) -> const double* { return nullptr; }); }) ==
          "the schedule of dovetail::SGD monitors 'loss', which was not logged in validation; log it in "
          "validation_step or "
          "correct the name.");
  }
}

TEST_CASE("T42 schedules out of range are refused", "[optim]") {
  const auto p = two();
  CHECK(refusal([&] { dt::scheduled(dt::SGD(p), dt::WarmupCosine{.warmup_steps = 5, .total_steps = 5}); }) ==
        "WarmupCosine needs total_steps above warmup_steps, and warmup_steps not negative.");
  CHECK(refusal([&] {
          const auto plateau = [](torch::optim::Optimizer& o) { return torch::optim::ReduceLROnPlateauScheduler(o); };
          dt::OptimizerSet(dt::scheduled(dt::SGD(p), plateau)).bind_schedules();
        }) == "a scheduler whose step takes a metric needs scheduled(..., {.monitor = \"the metric's name\"}).");
  CHECK(refusal([&] { dt::scheduled(dt::SGD(p), dt::StepDecay{}); }) == "StepDecay needs every above 0.");
  CHECK(refusal([&] { dt::scheduled(dt::SGD(p), dt::Plateau{}); }) ==
        "Plateau needs the name of the metric to monitor.");

  const double nan = std::nan("");
  CHECK(refusal([&] { dt::scheduled(dt::SGD(p), dt::WarmupCosine{.total_steps = 5, .min_factor = nan}); }) ==
        "WarmupCosine needs a finite min_factor.");
  CHECK(refusal([&] { dt::scheduled(dt::SGD(p), dt::LinearDecay{.total_steps = 5, .min_factor = nan}); }) ==
        "LinearDecay needs a finite min_factor.");
  CHECK(refusal([&] { dt::scheduled(dt::SGD(p), dt::StepDecay{.every = 1, .gamma = HUGE_VAL}); }) ==
        "StepDecay needs a finite gamma.");
  CHECK(refusal([&] { dt::scheduled(dt::SGD(p), dt::Plateau{.monitor = "loss", .threshold = nan}); }) ==
        "Plateau needs a finite threshold and a finite min_factor.");
  struct DividesByZero {
    double factor(int64_t taken) const { return 1.0 / double(taken); }
  };
  CHECK(refusal([&] { dt::OptimizerSet(dt::scheduled(dt::SGD(p), DividesByZero{})).bind_schedules(); }) ==
        "a schedule's factor is inf: it must be finite.");
  CHECK(refusal([&] { dt::SGD(p, {.lr = nan}); }) == "SGD: lr must not be negative and must be finite, got nan.");
  CHECK(refusal([&] { dt::AdamW(p, {.weight_decay = HUGE_VAL}); }) ==
        "AdamW: weight_decay must not be negative and must be finite, got inf.");
}

TEST_CASE("squared norms are accumulated in double and let nothing non-finite pass", "[optim]") {
  torch::manual_seed(3);
  for (int64_t count : {1, 7, 4608, 16384, 20001, 300000})
    for (auto dtype : {torch::kFloat32, torch::kFloat64, torch::kBFloat16, torch::kHalf}) {
      const auto x = torch::randn({count}).to(dtype);
      const double expected = x.to(torch::kFloat64).square().sum().item<double>();
      const double close = dtype == torch::kFloat64 ? 1e-13 : 1e-6;
      CHECK(std::abs(dt::squared_norm(x) - expected) < close * expected);
      CHECK(std::isnan(dt::squared_norm(x.clone().index_put_({count / 2}, std::nan("")))));
      CHECK(std::isinf(dt::squared_norm(x.clone().index_put_({count - 1}, -std::numeric_limits<double>::infinity()))));
    }
  CHECK(dt::squared_norm(torch::full({20000}, 1e25f)) == Approx(20000 * 1e50));  // squares beyond fp32
  CHECK(dt::squared_norm(std::vector<torch::Tensor>{torch::full({3}, 2.0f), torch::full({2, 2}, 1.0f).t(),
                                                    torch::empty({0})}) == 16);
  CHECK(dt::squared_norm(torch::ones({2, 1}).expand({2, 5})) == 10);
  const auto large = torch::randn({500000});
  torch::set_num_threads(1);
  const double one_thread = dt::squared_norm(large);
  torch::set_num_threads(2);
  CHECK(dt::squared_norm(large) == one_thread);
  torch::set_num_threads(1);
}

TEST_CASE("clipping follows its formulas", "[optim]") {
  CHECK(dt::clip_coefficient(10, 1) == 1 / (10 + 1e-6));
  CHECK(dt::clip_coefficient(0.5, 1) == 1);
  CHECK(dt::clip_coefficient(0, 1) == 1);
  CHECK(std::isnan(dt::clip_coefficient(std::nan(""), 1)));
  CHECK(dt::clip_coefficient(std::numeric_limits<double>::infinity(), 1) == 0);
  CHECK(dt::clip_norm(2).kind == dt::ClipOptions::Kind::norm);
  CHECK(dt::clip_value(3).limit == 3);
}
