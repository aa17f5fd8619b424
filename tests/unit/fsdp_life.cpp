// SPDX-License-Identifier: Apache-2.0
// The life of a unit's parameters and gradients under FSDP, in one process.
#include "support/fsdp_session.hpp"

#include <catch2/catch.hpp>

namespace dt = dovetail;
using torch::Tensor;

namespace {

struct BlockImpl : torch::nn::Module {
  torch::nn::Linear wide, narrow;
  torch::nn::LayerNorm norm;
  explicit BlockImpl(int width)
      : wide(register_module("wide", torch::nn::Linear(width, 2 * width))),
        narrow(register_module("narrow", torch::nn::Linear(2 * width, width))),
        norm(register_module("norm", torch::nn::LayerNorm(std::vector<int64_t>{width}))) {}
  Tensor forward(const Tensor& x) { return x + narrow(torch::tanh(wide(norm(x)))); }
};
TORCH_MODULE(Block);

/// `Wrapped` is Unit or Plain: the same model with and without.
template <class M>
struct Plain : M {
  using M::M;
};

template <template <class> class Wrapped>
struct NetImpl : torch::nn::Module {
  torch::nn::Linear stem = register_module("stem", torch::nn::Linear(3, 4));
  Wrapped<Block> a = register_module("a", Wrapped<Block>(4));
  Wrapped<Block> b = register_module("b", Wrapped<Block>(4));
  Wrapped<Block> c = register_module("c", Wrapped<Block>(4));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 2));
  Tensor forward(const Tensor& x) { return head(c(b(a(stem(x))))); }
  Tensor twice(const Tensor& x) { return head(a(b(a(a(stem(x)))))); }
};

template <class Net>
std::shared_ptr<Net> make() {
  torch::manual_seed(11);
  return std::make_shared<Net>();
}
using Sharded = NetImpl<dt::Unit>;
using Whole = NetImpl<Plain>;

const Tensor inputs = [] {
  torch::manual_seed(5);
  return torch::randn({6, 3});
}();

}  // namespace

TEST_CASE("ten steps equal the plain model, bit for bit", "[fsdp][life]") {
  const bool reshards = GENERATE(true, false);
  const int prefetch = GENERATE(0, 1, 2);
  auto sharded = make<Sharded>();
  auto whole = make<Whole>();
  {
    FsdpSession session(sharded, {}, {.reshard_after_forward = reshards, .prefetch = prefetch});
    for (int step = 0; step < 10; ++step) {
      const double loss = session.train(0.1, [&] { return sharded->forward(inputs).pow(2).mean(); });
      CHECK(loss == train_plainly(*whole, 0.1, [&] { return whole->forward(inputs).pow(2).mean(); }));
      CHECK(session.full_bytes() == 0);
      CHECK(session.gradient_bytes() == 0);
    }
    session.fsdp.teardown(session.run);
  }
  CHECK(largest_difference(*sharded, *whole) == 0);
  CHECK_FALSE(sharded->a->is_attached());
  CHECK_FALSE(sharded->a->wide->weight.grad().defined());
  CHECK(torch::equal(sharded->forward(inputs), whole->forward(inputs)));
}

TEST_CASE("T12 C-83 the optimizer's pieces are leaves, one per parameter and side by side", "[fsdp][life]") {
  auto net = make<Sharded>();
  const auto names = net->named_parameters().keys();
  FsdpSession session(net);
  std::vector<std::string> slots;
  for (const auto& slot : session.run.gradients.slots) {
    slots.push_back(slot.name);
    CHECK(slot.held.is_leaf());
    CHECK(slot.held.requires_grad());
    CHECK(slot.held.dim() == 1);
    CHECK(slot.main.sizes() == slot.held.sizes());
  }
  CHECK(slots == names);
  CHECK(net->named_parameters().keys() == names);
  std::vector<Tensor> held, mains;
  for (const auto& slot : session.run.gradients.slots) {
    held.push_back(slot.held);
    mains.push_back(slot.main);
  }
  CHECK(dt::merge_adjacent(held, mains).size() == 1);
}

TEST_CASE("freed parameters say who they are and what to do", "[fsdp][life]") {
  auto net = make<Sharded>();
  FsdpSession session(net);
  using Catch::Matchers::Contains;
  const Tensor wide = net->a->wide->weight;
  CHECK_THROWS_WITH(wide.sum(), Contains("'a.wide.weight'") && Contains("unit 'a'") && Contains("through its holder") &&
                                    Contains("full_parameters"));
  CHECK_THROWS_WITH(wide.clone(), Contains("unit 'a'"));
  CHECK_THROWS_WITH(net->a->wide(torch::ones({1, 4})), Contains("unit 'a'"));
  CHECK_THROWS_WITH(net->head->weight + 1, Contains("root unit"));
}

TEST_CASE("C-02 C-49 C-88 what is gathered: the root, the unit that runs, and those ahead of it", "[fsdp][life]") {
  const int prefetch = GENERATE(0, 1);
  const bool reshards = GENERATE(true, false);
  auto net = make<Sharded>();
  FsdpSession session(net, {}, {.reshard_after_forward = reshards, .prefetch = prefetch});
  const std::size_t root = 4 * (3 * 4 + 4 + 4 * 2 + 2), unit = 4 * (2 * 4 * 8 + 8 + 4 + 4 + 4);
  for (int step = 0; step < 3; ++step) {
    const std::size_t ahead = step == 0 ? 0 : std::size_t(prefetch) * unit;  // the first order is not known before
    session.micro_batch(0, [&] {
      CHECK(session.full_bytes() == root + ahead);
      Tensor x = net->a(net->stem(inputs));
      CHECK(session.full_bytes() == root + unit + ahead);
      x = net->b(x);
      CHECK(session.full_bytes() == root + (reshards ? 1 : 2) * unit + ahead);
      x = net->c(x);
      CHECK(session.full_bytes() == root + (reshards ? 1 : 3) * unit);
      CHECK(session.gradient_bytes() == 0);
      return net->head(x).sum();
    });
    CHECK(session.full_bytes() == root);
    session.step(0.1);
    CHECK(session.full_bytes() == 0);
  }
}

TEST_CASE("C-49 gradients exist for the root and one unit at a time", "[fsdp][life]") {
  auto net = make<Sharded>();
  FsdpSession session(net);
  const std::size_t root = 4 * (3 * 4 + 4 + 4 * 2 + 2);
  std::vector<std::size_t> seen;
  session.micro_batch(0, [&] {
    Tensor x = net->stem(inputs);
    const auto watch = [&](const Tensor& t) {
      t.register_hook([&](const Tensor&) { seen.push_back(session.gradient_bytes()); });
    };
    x = net->a(x);
    watch(x);
    x = net->b(x);
    watch(x);
    return net->head(net->c(x)).sum();
  });
  CHECK(seen == std::vector<std::size_t>{root, root});  // the head is of the root
}

TEST_CASE("a gradient that comes after its unit was reduced is refused by name", "[fsdp][life]") {
  auto net = make<Sharded>();
  FsdpSession session(net, {}, {.reshard_after_forward = false});
  session.fsdp.before_forward(session.run);
  const Tensor loss = net->forward(inputs).sum();
  const Tensor late = net->a->wide->weight.sum();
  session.fsdp.before_backward(session.run);
  loss.backward();
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(late.backward(), Contains("'a.wide.weight'") && Contains("came too late"));
  // The next step begins anew.
  session.train(0.1, [&] { return net->forward(inputs).pow(2).mean(); });
  CHECK(session.slot("a.wide.weight").taken == false);
  session.micro_batch(0, [&] { return net->forward(inputs).pow(2).mean(); });
  CHECK(session.slot("a.wide.weight").taken);
  CHECK(session.slot("a.wide.weight").main.abs().sum().item<float>() > 0);
}

TEST_CASE("C-10 a unit that is called several times", "[fsdp][life]") {
  auto sharded = make<Sharded>();
  auto whole = make<Whole>();
  const bool reshards = GENERATE(true, false);
  FsdpSession session(sharded, {}, {.reshard_after_forward = reshards});
  for (int step = 0; step < 4; ++step) {
    session.train(0.1, [&] { return sharded->twice(inputs).pow(2).mean(); });
    train_plainly(*whole, 0.1, [&] { return whole->twice(inputs).pow(2).mean(); });
  }
  // c had no gradient and has not moved.
  CHECK(session.slot("c.wide.weight").main.abs().max().item<float>() == 0);
  session.fsdp.teardown(session.run);
  CHECK(largest_difference(*sharded, *whole) < 1e-6);  // autograd adds the three contributions in one order or another
}

TEST_CASE("C-69 an order that changes from step to step", "[fsdp][life]") {
  auto sharded = make<Sharded>();
  auto whole = make<Whole>();
  FsdpSession session(sharded);
  const std::vector<std::string> orders = {"abc", "cba", "b", "bcab", "abc", "ca", "aabbcc", "cabcabcab", "", "acb"};
  const auto run = [](auto& net, const std::string& order) {
    Tensor x = net->stem(inputs);
    for (char unit : order) x = unit == 'a' ? net->a(x) : unit == 'b' ? net->b(x) : net->c(x);
    return net->head(x).pow(2).mean();
  };
  for (int round = 0; round < 6; ++round)
    for (const auto& order : orders) {
      const double loss = session.train(0.05, [&] { return run(sharded, order); });
      CHECK(loss == Approx(train_plainly(*whole, 0.05, [&] { return run(whole, order); })).epsilon(1e-5));
    }
  session.fsdp.teardown(session.run);
  CHECK(largest_difference(*sharded, *whole) < 1e-5);
}

TEST_CASE("C-66 accumulation adds micro-batches", "[fsdp][life]") {
  auto sharded = make<Sharded>();
  auto whole = make<Whole>();
  FsdpSession session(sharded);
  const auto parts = inputs.chunk(3);
  for (int step = 0; step < 3; ++step) {
    for (int64_t i = 0; i < 3; ++i) session.micro_batch(i, [&] { return sharded->forward(parts[i]).sum(); });
    session.step(0.05);
    train_plainly(*whole, 0.05, [&] { return whole->forward(inputs).sum(); });
  }
  session.fsdp.teardown(session.run);
  CHECK(largest_difference(*sharded, *whole) < 1e-5);
}

TEST_CASE("C-65 evaluation keeps one unit and changes nothing", "[fsdp][life]") {
  auto sharded = make<Sharded>();
  auto whole = make<Whole>();
  FsdpSession session(sharded, {}, {.reshard_after_forward = false});
  const std::size_t root = 4 * (3 * 4 + 4 + 4 * 2 + 2), unit = 4 * (2 * 4 * 8 + 8 + 4 + 4 + 4);
  for (int step = 0; step < 2; ++step) {
    {
      torch::NoGradGuard no_grad;
      for (int batch = 0; batch < 2; ++batch) {
        session.fsdp.before_forward(session.run);
        CHECK(torch::equal(sharded->forward(inputs), whole->forward(inputs)));
        CHECK(session.full_bytes() == root + unit);
      }
    }
    session.train(0.1, [&] { return sharded->forward(inputs).pow(2).mean(); });
    train_plainly(*whole, 0.1, [&] { return whole->forward(inputs).pow(2).mean(); });
  }
  session.fsdp.teardown(session.run);
  CHECK(largest_difference(*sharded, *whole) == 0);
}

TEST_CASE("C-17 after an exception in the forward the next step is clean", "[fsdp][life]") {
  auto sharded = make<Sharded>();
  auto whole = make<Whole>();
  FsdpSession session(sharded);
  const auto good = [&] { return sharded->forward(inputs).pow(2).mean(); };
  for (int step = 0; step < 3; ++step) {
    session.fsdp.before_forward(session.run);
    CHECK_THROWS(sharded->b(sharded->a(torch::ones({1, 9}))));
    session.fsdp.before_forward(session.run);
    const Tensor x = sharded->a(sharded->stem(inputs));
    CHECK_THROWS(sharded->b(x.narrow(1, 0, 2)));
    session.train(0.1, good);
    train_plainly(*whole, 0.1, [&] { return whole->forward(inputs).pow(2).mean(); });
  }
  session.fsdp.teardown(session.run);
  CHECK(largest_difference(*sharded, *whole) == 0);
}

TEST_CASE("a graph of an earlier step is refused by name", "[fsdp][life]") {
  auto net = make<Sharded>();
  FsdpSession session(net);
  Tensor old;
  session.train(0.1, [&] {
    old = net->a(net->stem(inputs));
    return net->head(net->b(old)).sum();
  });
  CHECK_THROWS_WITH(session.train(0.1, [&] { return (net->a(net->stem(inputs)) * old).sum(); }),
                    Catch::Matchers::Contains("unit 'a'") && Catch::Matchers::Contains("earlier step"));
}

namespace {

/// An inner unit, one beside it that is no unit, and an entry that needs a gradient inside the forward.
template <template <class> class Wrapped>
struct OuterImpl : torch::nn::Module {
  Wrapped<Block> first = register_module("first", Wrapped<Block>(4));
  torch::nn::Linear own = register_module("own", torch::nn::Linear(4, 4));
  Wrapped<Block> last = register_module("last", Wrapped<Block>(4));
  Tensor forward(const Tensor& x) { return last(own(first(x))); }
};
template <template <class> class Wrapped>
struct NestedImpl : torch::nn::Module {
  Wrapped<torch::nn::Linear> stem = register_module("stem", Wrapped<torch::nn::Linear>(3, 4));
  Wrapped<torch::nn::ModuleHolder<OuterImpl<Wrapped>>> outer =
      register_module("outer", Wrapped<torch::nn::ModuleHolder<OuterImpl<Wrapped>>>());
  Tensor forward(const Tensor& x) { return outer(outer(stem(x))); }
};

}  // namespace

TEST_CASE("units inside units", "[fsdp][life]") {
  auto sharded = make<NestedImpl<dt::Unit>>();
  auto whole = make<NestedImpl<Plain>>();
  const bool reshards = GENERATE(true, false);
  const int prefetch = GENERATE(0, 1, 3);
  FsdpSession session(sharded, {}, {.reshard_after_forward = reshards, .prefetch = prefetch});
  for (int step = 0; step < 4; ++step) {
    session.train(0.1, [&] { return sharded->forward(inputs).pow(2).mean(); });
    train_plainly(*whole, 0.1, [&] { return whole->forward(inputs).pow(2).mean(); });
    CHECK(session.full_bytes() == 0);
  }
  session.fsdp.teardown(session.run);
  CHECK(largest_difference(*sharded, *whole) < 1e-6);
}

TEST_CASE("a gradient inside the forward, differentiated again", "[fsdp][life]") {
  auto sharded = make<Sharded>();
  auto whole = make<Whole>();
  FsdpSession session(sharded);
  const auto penalty = [](auto& net) {
    const Tensor x = inputs.clone().requires_grad_();
    const Tensor out = net->forward(x);
    const auto gradients = torch::autograd::grad({out.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
    return out.pow(2).mean() + gradients[0].pow(2).sum();
  };
  for (int step = 0; step < 4; ++step) {
    session.train(0.05, [&] { return penalty(sharded); });
    train_plainly(*whole, 0.05, [&] { return penalty(whole); });
    CHECK(session.full_bytes() == 0);
  }
  session.fsdp.teardown(session.run);
  CHECK(largest_difference(*sharded, *whole) < 1e-6);
}

TEST_CASE("a unit whose output the loss does not use gets zero", "[fsdp][life]") {
  auto sharded = make<Sharded>();
  FsdpSession session(sharded);
  session.micro_batch(0, [&] {
    const Tensor x = sharded->a(sharded->stem(inputs));
    sharded->b(x);
    return sharded->head(sharded->c(x)).sum();
  });
  CHECK(session.slot("b.wide.weight").main.abs().max().item<float>() == 0);
  CHECK(session.slot("a.wide.weight").main.abs().max().item<float>() > 0);
  CHECK(session.run.gradients.count_missing() == 6);  // those of b
}

TEST_CASE("a model without units is all root, frozen parameters stay whole", "[fsdp][life]") {
  auto sharded = make<Whole>();
  auto whole = make<Whole>();
  for (auto& net : {sharded, whole}) net->stem->weight.requires_grad_(false);
  FsdpSession session(sharded);
  CHECK(session.fsdp.units().units().empty());
  CHECK(torch::equal(sharded->stem->weight, whole->stem->weight));
  session.train(0.1, [&] { return sharded->forward(inputs).pow(2).mean(); });
  train_plainly(*whole, 0.1, [&] { return whole->forward(inputs).pow(2).mean(); });
  session.fsdp.teardown(session.run);
  CHECK(largest_difference(*sharded, *whole) == 0);
}

TEST_CASE("a run that ends without teardown lets go of the units", "[fsdp][life]") {
  auto net = make<Sharded>();
  { FsdpSession session(net); }
  CHECK_FALSE(net->a->is_attached());
}

TEST_CASE("C-56 parameters that are not dense are refused by name", "[fsdp][life]") {
  struct Gappy : torch::nn::Module {
    Tensor w = register_parameter("w", torch::ones({1, 4}).expand({3, 4}));
  };
  CHECK_THROWS_WITH(FsdpSession(std::make_shared<Gappy>()), Catch::Matchers::Contains("'w' is not dense"));
}
