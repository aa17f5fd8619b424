// SPDX-License-Identifier: Apache-2.0
// The fused optimizers against LibTorch's own, and against the plain kernels.

#include <dovetail/optim/adagrad.hpp>
#include <dovetail/optim/adam.hpp>
#include <dovetail/optim/adamw.hpp>
#include <dovetail/optim/sgd.hpp>

#include <torch/optim.h>
#include <torch/utils.h>

#include <catch2/catch.hpp>

#include <cmath>
#include <functional>

namespace dt = dovetail;

namespace {

using Tensors = std::vector<torch::Tensor>;

/// Parameters of order one whose sizes leave remainders after every vector width; one lies channels-last, one
/// transposed.
Tensors make_params(torch::ScalarType dtype = torch::kFloat32) {
  torch::manual_seed(7);
  Tensors params;
  for (auto shape : std::vector<std::vector<int64_t>>{{7}, {5, 3}, {1}, {64}, {129}, {33, 17}})
    params.push_back(torch::randn(shape, dtype));
  params.push_back(torch::randn({2, 3, 5, 5}, dtype).contiguous(torch::MemoryFormat::ChannelsLast));
  params.push_back(torch::randn({6, 11}, dtype).t());
  for (auto& param : params) param.set_requires_grad(true);
  return params;
}

Tensors copies(const Tensors& tensors) {
  Tensors made;
  for (const auto& tensor : tensors) made.push_back(tensor.detach().clone().set_requires_grad(true));
  return made;
}

dt::Parameters named(const Tensors& tensors) {
  dt::Parameters parameters;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    parameters.push_back({"p" + std::to_string(i), tensors[i].sizes().vec(), tensors[i]});
  return parameters;
}

/// Gradients of step s, the same for every caller, times `factor`. `has` says which parameters get one.
void give_gradients(Tensors& params, int step, double factor = 1, const std::function<bool(std::size_t)>& has = {}) {
  torch::NoGradGuard no_grad;
  auto generator = torch::make_generator<torch::CPUGeneratorImpl>(uint64_t(1000 + step));
  for (std::size_t i = 0; i < params.size(); ++i) {
    auto grad = torch::randn(params[i].sizes(), generator, torch::kFloat64).mul_(factor).to(params[i].scalar_type());
    params[i].mutable_grad().reset();
    if (!has || has(i)) params[i].mutable_grad() = torch::empty_like(params[i]).copy_(grad).detach();
  }
}

double largest_difference(const Tensors& a, const Tensors& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, (a[i].detach() - b[i].detach()).abs().max().item<double>());
  return largest;
}

bool same_bits(const Tensors& a, const Tensors& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!torch::equal(a[i].detach(), b[i].detach())) return false;
  return true;
}

/// Steps both 20 times with the same gradients and returns how far they are apart. `sign` is the peer's: -1 stands for
/// maximize, which LibTorch's C++ optimizers lack.
template <class Ours, class Peer>
double apart(torch::ScalarType dtype, typename Ours::Options options, const std::function<Peer(Tensors)>& make_peer,
             double sign = 1, const std::function<bool(int, std::size_t)>& has = {}) {
  Tensors ours = make_params(dtype), theirs = copies(ours);
  Ours optimizer(named(ours), options);
  Peer peer = make_peer(theirs);
  for (int step = 0; step < 20; ++step) {
    const auto now = [&](std::size_t i) { return !has || has(step, i); };
    give_gradients(ours, step, 1, now);
    give_gradients(theirs, step, sign, now);
    optimizer.step();
    peer.step();
  }
  return largest_difference(ours, theirs);
}

// What a parameter of order one may differ by after 20 steps of 1e-2 or less: a few roundings a step.
double tolerance(torch::ScalarType dtype) {
  return dtype == torch::kFloat64 ? 1e-12 : 2e-6;
}

const auto both_dtypes = {torch::kFloat32, torch::kFloat64};

/// Parameter 0 gets its first gradient at step 5, parameter 1 at every third step only, parameter 2 never.
bool with_gaps(int step, std::size_t i) {
  return i == 0 ? step >= 5 : i == 1 ? step % 3 == 0 : i != 2;
}

/// Lays parameters of one dtype out in one storage, in reverse order, and their gradients in another.
std::pair<torch::Tensor, torch::Tensor> move_home(Tensors& params) {
  torch::NoGradGuard no_grad;
  int64_t total = 0;
  for (const auto& param : params) total += param.numel();
  const auto like = params.front().options().requires_grad(false);
  torch::Tensor data = torch::empty({total}, like), grads = torch::zeros({total}, like);
  for (std::size_t i = params.size(); i-- > 0;) {
    total -= params[i].numel();
    auto place = data.as_strided(params[i].sizes(), params[i].strides(), total);
    place.copy_(params[i]);
    params[i].set_data(place);
    params[i].mutable_grad() = grads.as_strided(params[i].sizes(), params[i].strides(), total);
  }
  return {data, grads};
}

void fill_gradients(Tensors& params, int step) {
  Tensors made = copies(params);
  give_gradients(made, step);
  for (std::size_t i = 0; i < params.size(); ++i) params[i].mutable_grad().copy_(made[i].grad());
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

}  // namespace

TEST_CASE("AdamW equals torch::optim::AdamW", "[optim]") {
  for (auto dtype : both_dtypes)
    for (bool amsgrad : {false, true}) {
      const auto peer = [&](Tensors p) {
        return torch::optim::AdamW(
            p, torch::optim::AdamWOptions(1e-2).weight_decay(0.1).betas({0.8, 0.99}).amsgrad(amsgrad));
      };
      const dt::AdamWOptions options{.lr = 1e-2, .betas = {0.8, 0.99}, .weight_decay = 0.1, .amsgrad = amsgrad};
      CHECK(apart<dt::AdamW, torch::optim::AdamW>(dtype, options, peer) < tolerance(dtype));
      CHECK(apart<dt::AdamW, torch::optim::AdamW>(dtype, options, peer, 1, with_gaps) < tolerance(dtype));
      auto maximize = options;
      maximize.maximize = true;
      CHECK(apart<dt::AdamW, torch::optim::AdamW>(dtype, maximize, peer, -1) < tolerance(dtype));
    }
}

TEST_CASE("Adam equals torch::optim::Adam", "[optim]") {
  for (auto dtype : both_dtypes)
    for (bool amsgrad : {false, true}) {
      const auto peer = [&](Tensors p) {
        return torch::optim::Adam(p, torch::optim::AdamOptions(1e-2).weight_decay(0.1).amsgrad(amsgrad));
      };
      const dt::AdamOptions options{.lr = 1e-2, .weight_decay = 0.1, .amsgrad = amsgrad};
      CHECK(apart<dt::Adam, torch::optim::Adam>(dtype, options, peer) < tolerance(dtype));
      CHECK(apart<dt::Adam, torch::optim::Adam>(dtype, options, peer, 1, with_gaps) < tolerance(dtype));
    }
}

TEST_CASE("SGD equals torch::optim::SGD", "[optim]") {
  struct Case {
    double momentum, dampening, weight_decay;
    bool nesterov;
  };
  for (auto dtype : both_dtypes)
    for (Case c : {Case{0, 0, 0, false}, Case{0, 0, 0.1, false}, Case{0.9, 0, 0.1, true}, Case{0.9, 0.5, 0, false}}) {
      const auto peer = [&](Tensors p) {
        return torch::optim::SGD(p, torch::optim::SGDOptions(1e-2)
                                        .momentum(c.momentum)
                                        .dampening(c.dampening)
                                        .weight_decay(c.weight_decay)
                                        .nesterov(c.nesterov));
      };
      const dt::SGDOptions options{.lr = 1e-2,
                                   .momentum = c.momentum,
                                   .dampening = c.dampening,
                                   .weight_decay = c.weight_decay,
                                   .nesterov = c.nesterov};
      CHECK(apart<dt::SGD, torch::optim::SGD>(dtype, options, peer) < tolerance(dtype));
      CHECK(apart<dt::SGD, torch::optim::SGD>(dtype, options, peer, 1, with_gaps) < tolerance(dtype));
    }
}

TEST_CASE("Adagrad equals torch::optim::Adagrad", "[optim]") {
  for (auto dtype : both_dtypes) {
    const auto peer = [&](Tensors p) {
      return torch::optim::Adagrad(
          p, torch::optim::AdagradOptions(1e-2).lr_decay(0.1).weight_decay(0.1).initial_accumulator_value(0.5));
    };
    const dt::AdagradOptions options{
        .lr = 1e-2, .lr_decay = 0.1, .weight_decay = 0.1, .initial_accumulator_value = 0.5};
    CHECK(apart<dt::Adagrad, torch::optim::Adagrad>(dtype, options, peer) < tolerance(dtype));
    CHECK(apart<dt::Adagrad, torch::optim::Adagrad>(dtype, options, peer, 1, with_gaps) < tolerance(dtype));
  }
}

TEST_CASE("groups have options of their own, read at every step", "[optim]") {
  Tensors ours = make_params(), theirs = copies(ours);
  const auto decays = [](const std::string& name) { return name == "p1" || name == "p5"; };
  const auto p = named(ours);
  dt::AdamW optimizer(
      {{p.where(decays), {.lr = 1e-2, .weight_decay = 0.5}}, {p.where_not(decays), {.lr = 3e-3, .weight_decay = 0}}});
  const auto q = named(theirs);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(q.where(decays).tensors(),
                      std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(1e-2).weight_decay(0.5)));
  groups.emplace_back(q.where_not(decays).tensors(),
                      std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(3e-3).weight_decay(0)));
  torch::optim::AdamW peer(groups);
  for (int step = 0; step < 10; ++step) {
    for (auto* each : std::initializer_list<torch::optim::Optimizer*>{&optimizer, &peer})
      each->param_groups()[1].options().set_lr(3e-3 / (step + 1));
    give_gradients(ours, step);
    give_gradients(theirs, step);
    optimizer.step();
    peer.step();
  }
  CHECK(largest_difference(ours, theirs) < tolerance(torch::kFloat32));
  CHECK(optimizer.calls() == 2);
}

TEST_CASE("neighbours in storage are stepped as one, with the same result", "[optim]") {
  Tensors ours = make_params(), theirs = copies(ours);
  const auto [data, grads] = move_home(ours);
  dt::AdamW optimizer(named(ours), {.lr = 1e-2}), peer(named(theirs), {.lr = 1e-2});
  for (int step = 0; step < 10; ++step) {
    fill_gradients(ours, step);
    give_gradients(theirs, step);
    optimizer.step();
    peer.step();
    CHECK(optimizer.runs() == 1);
    CHECK(peer.runs() == theirs.size());
  }
  CHECK(same_bits(ours, theirs));
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const auto mine = optimizer.state_of(ours[i]), other = peer.state_of(theirs[i]);
    CHECK(mine.steps == 10);
    REQUIRE(mine.tensors.size() == 2);
    CHECK(mine.tensors[1].first == "exp_avg_sq");
    CHECK(mine.tensors[1].second.strides() == ours[i].strides());
    CHECK(torch::equal(mine.tensors[0].second, other.tensors[0].second));
    CHECK(torch::equal(mine.tensors[1].second, other.tensors[1].second));
  }
}

TEST_CASE("state goes with its parameter when the layout or the set of gradients changes", "[optim]") {
  Tensors ours = make_params(), theirs = copies(ours);
  dt::Adam optimizer(named(ours), {.lr = 1e-2});
  torch::optim::Adam peer(theirs, torch::optim::AdamOptions(1e-2));
  const auto both_step = [&](int step) {
    optimizer.step();
    give_gradients(theirs, step, 1, [&](std::size_t i) { return ours[i].grad().defined(); });
    peer.step();
  };
  for (int step = 0; step < 3; ++step) {
    give_gradients(ours, step);
    both_step(step);
  }
  CHECK(optimizer.runs() == ours.size());
  const auto [data, grads] = move_home(ours);
  optimizer.rebind();
  for (int step = 3; step < 6; ++step) {
    fill_gradients(ours, step);
    both_step(step);
  }
  CHECK(optimizer.runs() == 1);
  const torch::Tensor view = ours[3].grad();
  ours[3].mutable_grad().reset();  // found without being told
  for (int step = 6; step < 8; ++step) {
    Tensors made = copies(ours);
    give_gradients(made, step);
    for (std::size_t i = 0; i < ours.size(); ++i)
      if (i != 3) ours[i].mutable_grad().copy_(made[i].grad());
    both_step(step);
    CHECK(optimizer.runs() == 2);
    CHECK(optimizer.calls() == 1);
  }
  ours[3].mutable_grad() = view;
  for (int step = 8; step < 10; ++step) {
    fill_gradients(ours, step);
    both_step(step);
    CHECK(optimizer.calls() == 2);  // two step counts
    CHECK(optimizer.runs() == 3);
  }
  CHECK(optimizer.state_of(ours[3]).steps == 8);
  CHECK(optimizer.state_of(ours[4]).steps == 10);
  CHECK(largest_difference(ours, theirs) < tolerance(torch::kFloat32));
}

TEST_CASE("a parameter moved by set_data is found without being told", "[optim]") {
  Tensors ours = make_params(), theirs = copies(ours);
  auto home = move_home(ours);
  dt::SGD optimizer(named(ours), {.lr = 0.1, .momentum = 0.9}), peer(named(theirs), {.lr = 0.1, .momentum = 0.9});
  for (int step = 0; step < 4; ++step) {
    if (step == 2) ours[1].set_data(ours[1].detach().clone());
    fill_gradients(ours, step);
    give_gradients(theirs, step);
    optimizer.step();
    peer.step();
  }
  CHECK(optimizer.runs() == 3);
  CHECK(largest_difference(ours, theirs) < 1e-6);
}

TEST_CASE("a power of two as divisor changes no bit; others divide", "[optim]") {
  const auto run = [](auto make, torch::ScalarType dtype, double factor, double divisor) {
    Tensors params = make_params(dtype);
    auto optimizer = make(named(params));
    for (int step = 0; step < 5; ++step) {
      give_gradients(params, step, factor);
      optimizer.step(divisor);
    }
    return params;
  };
  const auto adamw = [](dt::Parameters p) { return dt::AdamW(p, {.lr = 1e-2}); };
  const auto sgd = [](dt::Parameters p) { return dt::SGD(p, {.lr = 1e-2, .momentum = 0.9}); };
  const auto adagrad = [](dt::Parameters p) { return dt::Adagrad(p, {.lr = 1e-2}); };
  for (auto dtype : both_dtypes) {
    CHECK(same_bits(run(adamw, dtype, 1, 1.0), run(adamw, dtype, 65536, 65536.0)));
    CHECK(same_bits(run(sgd, dtype, 1, 1.0), run(sgd, dtype, 65536, 65536.0)));
    CHECK(same_bits(run(adagrad, dtype, 1, 1.0), run(adagrad, dtype, 65536, 65536.0)));
    const double close = dtype == torch::kFloat64 ? 1e-14 : 1e-6;
    CHECK(largest_difference(run(sgd, dtype, 1, 1.0), run(sgd, dtype, 0.3, 0.3)) < close);
    CHECK(largest_difference(run(sgd, dtype, 1, 1.0), run(sgd, dtype, 1, 3.0)) > 1e-3);
  }
}

TEST_CASE("P42 low formats step as the bare kernel does", "[optim]") {
  for (auto dtype : {torch::kBFloat16, torch::kHalf}) {
    Tensors ours = make_params(dtype), theirs = copies(ours);
    dt::AdamW optimizer(named(ours), {.lr = 1e-2, .eps = 1e-3});
    Tensors exp_avgs, exp_avg_sqs, counters;
    for (const auto& param : theirs) {
      exp_avgs.push_back(torch::zeros_like(param.detach()));
      exp_avg_sqs.push_back(torch::zeros_like(param.detach()));
      counters.push_back(torch::zeros({}));
    }
    const torch::Tensor divisor = torch::full({1}, 1024.0f);
    for (int step = 0; step < 5; ++step) {
      give_gradients(ours, step, 1024);
      give_gradients(theirs, step, 1024);
      optimizer.step(1024.0);
      torch::NoGradGuard no_grad;
      Tensors grads;
      for (std::size_t i = 0; i < theirs.size(); ++i) {
        grads.push_back(torch::empty_like(theirs[i]).copy_(theirs[i].grad()));
        counters[i] += 1;
        if (!grads[i].is_contiguous()) grads[i] = grads[i].as_strided({grads[i].numel()}, {1});
      }
      at::_fused_adamw_(theirs, grads, exp_avgs, exp_avg_sqs, {}, counters, 1e-2, 0.9, 0.999, 1e-2, 1e-3, false, false,
                        divisor);
    }
    // Below 4 neighbouring numbers are at most so far apart; a result between two may be rounded to either.
    CHECK(largest_difference(ours, theirs) <= (dtype == torch::kBFloat16 ? 0x1p-6 : 0x1p-9));
    CHECK(optimizer.state_of(ours[0]).tensors[0].second.scalar_type() == dtype);
    CHECK(torch::isfinite(ours[5]).all().item<bool>());
  }
}

TEST_CASE("a loss scale beyond fp16's range divides fp16 gradients", "[optim]") {
  auto param = torch::zeros({37}, torch::kHalf).set_requires_grad(true);
  const auto step = [&](auto optimizer) {
    torch::NoGradGuard no_grad;
    param.zero_();
    param.mutable_grad() = torch::full({37}, 32, torch::kHalf);
    optimizer.step(131072.0);  // to 2^-12, a normal fp16 number
    return param.detach().to(torch::kFloat32);
  };
  CHECK((step(dt::SGD(named({param}), {.lr = 1})) == -std::exp2(-12)).all().item<bool>());
  CHECK((step(dt::Adagrad(named({param}), {.lr = 0.5})) == -0.5).all().item<bool>());
}

TEST_CASE("dtypes are mixed in one optimizer, one call each", "[optim]") {
  Tensors params = {torch::ones({3}).set_requires_grad(true), torch::ones({3}, torch::kFloat64).set_requires_grad(true),
                    torch::ones({5}, torch::kBFloat16).set_requires_grad(true),
                    torch::ones({0}).set_requires_grad(true)};
  dt::SGD optimizer(named(params), {.lr = 0.5});
  for (auto& param : params) param.mutable_grad() = torch::ones_like(param.detach());
  optimizer.step(2.0);
  CHECK(optimizer.calls() == 3);
  CHECK(optimizer.runs() == 3);
  for (int i = 0; i < 3; ++i) CHECK((params[i] == 0.75).all().item<bool>());
  CHECK(params[0].grad().equal(torch::ones({3})));  // divided in the kernel only
}

TEST_CASE("P66 a gradient with other strides than its parameter is read right", "[optim]") {
  auto param = torch::zeros({2, 3}).set_requires_grad(true);
  param.mutable_grad() = torch::arange(6, torch::kFloat32).view({3, 2}).t();
  const torch::Tensor expected = -param.grad().clone();
  dt::SGD optimizer(named({param}), {.lr = 1});
  optimizer.step();
  CHECK(torch::equal(param.detach(), expected));
  param.mutable_grad() = torch::ones({1, 1}).expand({2, 3});
  optimizer.step();
  CHECK(torch::equal(param.detach(), expected - 1));
}

TEST_CASE("stepping marks parameters as written to, gradients of a home as untouched", "[optim]") {
  Tensors params = make_params();
  const auto home = move_home(params);
  fill_gradients(params, 0);
  dt::SGD optimizer(named(params), {.lr = 1});
  const auto written = params[2]._version(), gradient = params[2].grad()._version();
  optimizer.step(2.0);
  CHECK(params[2]._version() == written + 1);
  CHECK(params[2].grad()._version() == gradient);
  auto x = torch::ones({2}).set_requires_grad(true);
  auto loss = (x * x).sum();
  x.mutable_grad() = torch::ones({2});
  dt::SGD(named({x}), {.lr = 1}).step();
  CHECK_THROWS_WITH(loss.backward(), Catch::Contains("modified by an inplace operation"));
}

TEST_CASE("gradients that autograd owns are let go of", "[optim]") {
  Tensors params = make_params();
  dt::AdamW optimizer(named(params));
  give_gradients(params, 0);
  optimizer.step();
  for (const auto& param : params) CHECK(param.grad().use_count() == 1);
  CHECK(optimizer.step([&] { return torch::tensor(3.0f); }).item<float>() == 3);
}

TEST_CASE("an optimizer that is moved keeps its state", "[optim]") {
  Tensors ours = make_params(), theirs = copies(ours);
  dt::AdamW first(named(ours), {.lr = 1e-2}), peer(named(theirs), {.lr = 1e-2});
  give_gradients(ours, 0), give_gradients(theirs, 0);
  first.step(), peer.step();
  dt::AdamW second = std::move(first);
  give_gradients(ours, 1), give_gradients(theirs, 1);
  second.step(), peer.step();
  CHECK(same_bits(ours, theirs));
}

TEST_CASE("what the kernel would misread is refused by name", "[optim]") {
  auto wide = torch::ones({4, 1}).expand({4, 4}).detach().set_requires_grad(true);
  CHECK(refusal([&] { dt::AdamW(named({wide})); }) ==
        "AdamW cannot step parameter 'p0' of shape [4, 4]: its strides [1, 0] share or skip memory, which the kernels "
        "would misread; make it contiguous first.");
  auto ints = torch::ones({2}, torch::kInt64);
  CHECK(refusal([&] { dt::SGD(named({ints})); }) ==
        "SGD cannot step parameter 'p0' of shape [2]: its dtype is Long, not a floating one.");
  auto leaf = torch::ones({2}).set_requires_grad(true);
  CHECK(refusal([&] { dt::Adam(named({leaf * 2})); }) ==
        "Adam: parameter 'p0' is the result of an operation; only leaves can be optimized.");
  CHECK(refusal([&] {
          dt::Adam(named({leaf, leaf}));
        }) == "Adam: parameter 'p1' is in more than one group, or twice in one.");
  CHECK(refusal([&] { dt::Adagrad(named({torch::Tensor()})); }) == "Adagrad: parameter 'p0' is undefined.");

  dt::SGD optimizer(named({leaf}));
  const auto gradient = [&](torch::Tensor grad) {
    leaf.unsafeGetTensorImpl()->mutable_grad() = grad;
    return refusal([&] { optimizer.step(); });
  };
  CHECK(gradient(torch::ones({3})) == "SGD cannot step parameter 'p0' of shape [2]: its gradient has shape [3].");
  CHECK(gradient(torch::ones({2}, torch::kFloat64)) ==
        "SGD cannot step parameter 'p0' of shape [2]: it is Float and its gradient Double.");
  CHECK(gradient(torch::ones({2}).to_sparse()) ==
        "SGD cannot step parameter 'p0' of shape [2]: its gradient is sparse.");
  CHECK(gradient(torch::ones({2})) == "");

  optimizer.param_groups()[0].params().push_back(wide);  // behind its back: no name, but a place
  wide.mutable_grad() = torch::ones({4, 4});
  CHECK_THAT(refusal([&] { optimizer.step(); }),
             Catch::StartsWith("SGD cannot step parameter entry 1 of group 0 of shape [4, 4]: its strides"));
}

TEST_CASE("a refused step changes nothing", "[optim]") {
  Tensors ours = make_params(), theirs = copies(ours);
  dt::AdamW optimizer(named(ours), {.lr = 1e-2}), peer(named(theirs), {.lr = 1e-2});
  give_gradients(ours, 0), give_gradients(theirs, 0);
  optimizer.step(), peer.step();
  ours.back().mutable_grad() = torch::ones({6, 11}).t().to_sparse();
  CHECK_THAT(refusal([&] { optimizer.step(); }), Catch::Contains("'p7'") && Catch::EndsWith("its gradient is sparse."));
  give_gradients(ours, 1), give_gradients(theirs, 1);
  optimizer.step(), peer.step();
  CHECK(same_bits(ours, theirs));
}

TEST_CASE("groups may be added as LibTorch does it; options of another optimizer are refused", "[optim]") {
  auto first = torch::zeros({2}).set_requires_grad(true), second = torch::zeros({2}).set_requires_grad(true);
  first.mutable_grad() = second.mutable_grad() = torch::ones({2});
  dt::SGD optimizer(named({first}), {.lr = 0.5});
  optimizer.step();
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({second}));
  optimizer.step();
  CHECK(torch::equal(first.detach(), torch::full({2}, -1.0f)));
  CHECK(torch::equal(second.detach(), torch::full({2}, -0.5f)));
  optimizer.param_groups()[1].set_options(std::make_unique<torch::optim::SGDOptions>(0.5));
  optimizer.rebind();
  CHECK(refusal([&] { optimizer.step(); }) ==
        "SGD: group 1 has the options of another optimizer; leave them out or use this one's.");
}

TEST_CASE("options out of range are refused", "[optim]") {
  const auto p = named(make_params());
  CHECK(refusal([&] { dt::AdamW(p, {.lr = -1}); }) == "AdamW: lr must not be negative, got -1.000000.");
  CHECK(refusal([&] {
          dt::Adam(p, {.betas = {0.9, 1}});
        }) == "Adam: each of betas must be at least 0 and below 1, got 1.000000.");
  CHECK(refusal([&] { dt::SGD(p, {.nesterov = true}); }) == "SGD: nesterov needs momentum above 0, got 0.000000.");
  CHECK(refusal([&] { dt::SGD(p, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}); }) ==
        "SGD: nesterov needs dampening 0, got 0.100000.");
  CHECK(refusal([&] { dt::Adagrad(p, {.eps = -1}); }) == "Adagrad: eps must not be negative, got -1.000000.");
}
