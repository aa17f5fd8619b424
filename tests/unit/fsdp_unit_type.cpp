// SPDX-License-Identifier: Apache-2.0
// Unit<M> as a type: it is the module, plus a place to put a strategy behind.
#include <dovetail/shard/unit.hpp>
#include <dovetail/shard/unit_tree.hpp>

#include <torch/nn.h>

#include <catch2/catch.hpp>

namespace dt = dovetail;
using torch::Tensor;

namespace {

struct BlockImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  explicit BlockImpl(int width, bool bias = true) {
    linear = register_module("linear", torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(bias)));
  }
  Tensor forward(Tensor x, Tensor mask = {}) { return mask.defined() ? linear(x) * mask : linear(x); }
  Tensor encode(const Tensor& x) { return linear(x).relu(); }
  std::tuple<Tensor, std::vector<Tensor>> split(const Tensor& x) { return {linear(x), {x + 1, x + 2}}; }
  void shift(Tensor& x) const { x = x + 1; }
  int64_t width() const { return linear->options.in_features(); }
};
TORCH_MODULE(Block);

struct OverloadedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return x * 2; }
  Tensor forward(const Tensor& x, double by) { return x * by; }
};

struct Named {
  Tensor logits;
  std::optional<Tensor> hidden;
  int steps;
};
struct Listed {
  Tensor get() const { return inner; }
  friend void for_each_tensor(Listed& value, auto&& visit) { visit(value.inner); }

 private:
  Tensor inner = torch::ones(1);
};
struct Hidden {
  explicit Hidden(Tensor t) : inner(t) {}

 private:
  Tensor inner;
};

using dt::detail::tensors_in;
using dt::detail::TensorsIn;
static_assert(tensors_in<Tensor>() == TensorsIn::visible);
static_assert(tensors_in<std::vector<Tensor>>() == TensorsIn::visible);
static_assert(tensors_in<std::optional<std::tuple<Tensor, int>>>() == TensorsIn::visible);
static_assert(tensors_in<std::map<std::string, Tensor>>() == TensorsIn::visible);
static_assert(tensors_in<torch::OrderedDict<std::string, Tensor>>() == TensorsIn::visible);
static_assert(tensors_in<Named>() == TensorsIn::visible);
static_assert(tensors_in<Listed>() == TensorsIn::visible);
static_assert(tensors_in<Hidden>() == TensorsIn::hidden);
static_assert(tensors_in<std::vector<Hidden>>() == TensorsIn::hidden);
static_assert(tensors_in<int>() == TensorsIn::none);
static_assert(tensors_in<std::string>() == TensorsIn::none);
static_assert(tensors_in<void>() == TensorsIn::none);
static_assert(tensors_in<std::vector<int64_t>>() == TensorsIn::none);

static_assert(dt::gathers_low<torch::nn::LinearImpl>);
static_assert(dt::gathers_low<torch::nn::Conv2dImpl>);
static_assert(!dt::gathers_low<torch::nn::LayerNormImpl>);
static_assert(!dt::gathers_low<torch::nn::EmbeddingImpl>);
static_assert(!dt::gathers_low<BlockImpl>);

/// Counts passes; a strategy would gather.
struct Counter final : dt::UnitRuntime {
  int begun = 0, ended = 0, thrown = 0;
  std::vector<std::string> backward;
  int64_t begin() override { return begun++; }
  void end(bool failed) noexcept override {
    ++ended;
    thrown += failed;
  }
  void before_backward(int64_t pass) override { backward.push_back("before " + std::to_string(pass)); }
  void after_backward(int64_t pass) override { backward.push_back("after " + std::to_string(pass)); }
};

}  // namespace

TEST_CASE("a unit keeps names, constructors, default arguments and overloads", "[fsdp][unit]") {
  dt::Unit<Block> unit(3, false);
  CHECK(unit->named_parameters().keys() == std::vector<std::string>{"linear.weight"});
  CHECK(unit->width() == 3);
  const Tensor x = torch::randn({2, 3});
  CHECK(torch::equal(unit(x), unit->linear(x)));
  CHECK(torch::equal(unit->forward(x), unit->linear(x)));
  CHECK(torch::equal(unit->forward(x, {}), unit->linear(x)));
  CHECK(torch::equal(unit->forward(x, torch::zeros(1)), torch::zeros({2, 3})));
  CHECK(torch::equal(unit->call(&BlockImpl::encode, x), unit->linear(x).relu()));

  dt::Unit<OverloadedImpl> overloaded;
  CHECK(overloaded(torch::ones(1)).item<float>() == 2);
  CHECK(overloaded(torch::ones(1), 3.0).item<float>() == 3);

  dt::Unit<Block> empty{nullptr};
  CHECK(empty.is_empty());
  dt::Unit<BlockImpl> from_impl(2);
  CHECK(from_impl->as<BlockImpl>() != nullptr);
}

TEST_CASE("a unit goes into Sequential", "[fsdp][unit]") {
  torch::nn::Sequential net(dt::Unit<Block>(2), dt::Unit<torch::nn::Linear>(2, 5),
                            dt::Unit<torch::nn::ConvTranspose1d>(torch::nn::ConvTranspose1dOptions(5, 1, 1)));
  // Sequential asks for every argument, also those with defaults, as it does of the plain module.
  CHECK_THROWS(net->forward(torch::ones({1, 2})));
  torch::nn::Sequential plain(dt::Unit<torch::nn::Linear>(2, 5), torch::nn::Functional(torch::relu),
                              dt::Unit<torch::nn::Linear>(5, 1));
  CHECK(plain->forward(torch::ones({3, 2})).sizes() == std::vector<int64_t>{3, 1});
  CHECK(plain->named_parameters().keys() == std::vector<std::string>{"0.weight", "0.bias", "2.weight", "2.bias"});

  torch::nn::Sequential transposed(dt::Unit<torch::nn::ConvTranspose1d>(torch::nn::ConvTranspose1dOptions(2, 3, 1)));
  CHECK(transposed->forward(torch::ones({1, 2, 4})).sizes() == std::vector<int64_t>{1, 3, 4});
}

TEST_CASE("C-64 backward fires once per pass, before and after the unit's own gradients", "[fsdp][unit]") {
  dt::Unit<Block> first(3), second(3);
  auto one = std::make_shared<Counter>(), two = std::make_shared<Counter>();
  first->attach(one);
  second->attach(two);
  const Tensor x = torch::randn({2, 3}).requires_grad_();

  // An in-place operation on a view of the output does not lose the node.
  Tensor y = second(first(x)).view({6});
  y.relu_();
  y.sum().backward();
  CHECK(one->backward == std::vector<std::string>{"before 0", "after 0"});
  CHECK(two->backward == std::vector<std::string>{"before 0", "after 0"});
  CHECK(first->linear->weight.grad().defined());

  // Without an input that needs a gradient there is nothing to fire after.
  first(torch::ones({1, 3})).sum().backward();
  CHECK(one->backward.back() == "before 1");
  {
    torch::NoGradGuard no_grad;
    CHECK_FALSE(first(x).requires_grad());
  }
  CHECK(one->begun == 3);
  CHECK(one->ended == 3);
}

TEST_CASE("gradients through an attached unit are those of the module", "[fsdp][unit]") {
  dt::Unit<Block> unit(4);
  const auto gradients = [&](const Tensor& x, auto&& loss) {
    unit->zero_grad();
    Tensor leaf = x.clone().requires_grad_();
    loss(leaf).backward();
    return std::vector<Tensor>{leaf.grad().clone(), unit->linear->weight.grad().clone()};
  };
  const Tensor x = torch::randn({2, 4});
  const auto same = [&](auto&& loss) {
    unit->attach(nullptr);
    const auto plain = gradients(x, loss);
    unit->attach(std::make_shared<Counter>());
    const auto attached = gradients(x, loss);
    unit->attach(nullptr);
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(torch::equal(plain[i], attached[i]));
  };
  same([&](Tensor& leaf) { return unit(leaf).tanh().sum(); });
  same([&](Tensor& leaf) { return unit(unit(leaf)).pow(2).sum(); });
  same([&](Tensor& leaf) {  // one of several outputs is not used
    auto [main, others] = unit->call(&BlockImpl::split, leaf);
    return (main * others[1]).sum();
  });
  same([&](Tensor& leaf) {  // an output changed in place
    Tensor out = unit(leaf);
    out.mul_(2).relu_();
    return out.sum();
  });
  same([&](Tensor& leaf) {  // one tensor as two arguments
    return unit(leaf, leaf).sum();
  });
}

namespace {
struct InPlaceImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(3, 3));
  Tensor forward(Tensor x) { return linear(x.relu_()); }
};
}  // namespace

TEST_CASE("an input changed in place inside a unit is changed for its caller too", "[fsdp][unit]") {
  torch::manual_seed(3);
  dt::Unit<InPlaceImpl> unit;
  const Tensor x = torch::randn({2, 3});
  const auto gradient = [&] {
    Tensor leaf = x.clone().requires_grad_();
    Tensor y = leaf * 3;
    const Tensor out = unit(y);
    (out.sum() + y.pow(2).sum()).backward();
    return leaf.grad().clone();
  };
  const Tensor plain = gradient();
  unit->attach(std::make_shared<Counter>());
  CHECK(torch::equal(plain, gradient()));
}

TEST_CASE("a function that takes a tensor by reference changes the caller's", "[fsdp][unit]") {
  dt::Unit<Block> unit(2);
  unit->attach(std::make_shared<Counter>());
  Tensor x = torch::zeros(2);
  unit->call(&BlockImpl::shift, x);
  CHECK(x.sum().item<float>() == 2);
}

TEST_CASE("an exception leaves the pass ended", "[fsdp][unit]") {
  dt::Unit<Block> unit(2);
  auto counter = std::make_shared<Counter>();
  unit->attach(counter);
  CHECK_THROWS(unit(torch::ones({1, 7})));
  CHECK(counter->ended == 1);
  CHECK(counter->thrown == 1);
  unit(torch::ones({1, 2}));
  CHECK(counter->thrown == 1);
}

namespace {
struct ResultsImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(2, 2));
  int forward(int x) { return x + 1; }
  Named named(Tensor x) { return {linear(x), linear(x) * 2, 3}; }
  std::map<std::string, Tensor> by_name(Tensor x) { return {{"out", linear(x)}}; }
};
}  // namespace

TEST_CASE("tensors are found in structs, maps and optionals", "[fsdp][unit]") {
  dt::Unit<ResultsImpl> unit;
  auto counter = std::make_shared<Counter>();
  unit->attach(counter);
  CHECK(unit(1) == 2);
  const Tensor x = torch::ones({1, 2}).requires_grad_();
  Named named = unit->call(&ResultsImpl::named, x);
  named.hidden->sum().backward();
  CHECK(counter->backward == std::vector<std::string>{"before 1", "after 1"});
  CHECK(named.steps == 3);
  unit->call(&ResultsImpl::by_name, x)["out"].sum().backward();
  CHECK(counter->backward.size() == 4);
}

TEST_CASE("parameters belong to the innermost unit, shared ones to the root", "[fsdp][unit]") {
  struct Inner : torch::nn::Module {
    dt::Unit<torch::nn::Linear> a = register_module("a", dt::Unit<torch::nn::Linear>(2, 2));
    torch::nn::Linear b = register_module("b", torch::nn::Linear(2, 2));
    Tensor forward(const Tensor& x) { return b(a(x)); }
  };
  struct Net : torch::nn::Module {
    dt::Unit<Inner> inner = register_module("inner", dt::Unit<Inner>());
    torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(std::vector<int64_t>{2}));
    dt::Unit<torch::nn::Linear> head = register_module("head", dt::Unit<torch::nn::Linear>(2, 2));
    Tensor tied = register_parameter("tied", head->weight);
  } net;
  const dt::UnitTree tree(net);
  REQUIRE(tree.units().size() == 3);
  CHECK(tree.units()[0].name == "inner");
  CHECK(tree.units()[1].name == "inner.a");
  CHECK(tree.units()[2].name == "head");
  CHECK(tree.owner(net.inner->b->weight).unit == 0);
  CHECK(tree.owner(net.inner->a->weight).unit == 1);
  CHECK(tree.owner(net.norm->weight).unit == dt::UnitTree::root);
  CHECK(tree.owner(net.head->weight).unit == dt::UnitTree::root);
  CHECK_FALSE(tree.owner(net.head->weight).low);  // the root module may use it where a low format is not taken
  CHECK(tree.owner(net.head->bias).unit == 2);
  CHECK(tree.owner(net.head->bias).low);
  CHECK_FALSE(tree.owner(net.norm->weight).low);
}
