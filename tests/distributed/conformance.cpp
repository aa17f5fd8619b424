// SPDX-License-Identifier: Apache-2.0
// Rows of the conformance table: FSDP around a loop written by hand, over models of every shape, against the plain
// model on the sum of all ranks' losses.
#include <dovetail/precision/autocast_guard.hpp>
#include <dovetail/precision/mixed.hpp>

#include <chrono>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "support/conformance_rank.hpp"
#include "support/fsdp_session.hpp"

namespace {

namespace dt = dovetail;
namespace nn = torch::nn;
using namespace conformance;
using torch::Tensor;

// ---- what every case needs

Tensor inputs(int rank, int step, std::vector<int64_t> shape = {4, 3}) {
  auto generator = at::detail::createCPUGenerator(uint64_t(1000 * step + rank + 1));
  return torch::randn(shape, generator, torch::kFloat32);
}

template <class M>
struct Plain : M {
  using M::M;
};

/// The same model twice: with units and without.
template <template <template <class> class> class Model>
struct Both {
  std::shared_ptr<Model<dt::Unit>> sharded;
  std::shared_ptr<Model<Plain>> whole;
  template <class Change>
  explicit Both(Change&& change) {
    torch::manual_seed(11);
    sharded = std::make_shared<Model<dt::Unit>>();
    torch::manual_seed(11);
    whole = std::make_shared<Model<Plain>>();
    change(*sharded);
    change(*whole);
  }
  Both() : Both([](auto&) {}) {}
};

/// Whole again, equal to the plain model, and the same bits on all ranks.
template <class Sharded, class Whole>
void compare(Rank& me, FsdpSession& session, const Sharded& sharded, const Whole& whole, double tolerance = 1e-5,
             const std::string& what = "the model") {
  me.that(session.full_bytes() == 0 && session.gradient_bytes() == 0, "something is gathered after a step");
  session.fsdp.teardown(session.run);
  me.near(largest_difference(sharded, whole), tolerance, what);
  for (const auto& item : sharded.named_parameters())
    me.that(me.same_everywhere(item.value()), "ranks differ in " + item.key());
}

/// Plain SGD on a whole model, tied parameters once.
template <class Loss>
void step_plainly(nn::Module& model, double rate, Loss&& loss) {
  model.zero_grad();
  loss().backward();
  torch::NoGradGuard no_grad;
  std::set<c10::TensorImpl*> seen;
  for (auto& parameter : model.parameters())
    if (parameter.grad().defined() && seen.insert(parameter.unsafeGetTensorImpl()).second)
      parameter.sub_(parameter.grad(), rate);
}

/// Steps of SGD, the plain model with the sum of all ranks' losses.
template <class Sharded, class Whole, class Loss>
void train(Rank& me, FsdpSession& session, Sharded& sharded, Whole& whole, Loss&& loss, int steps = 4, int first = 0) {
  for (int step = first; step < first + steps; ++step) {
    session.train(0.02, [&] { return loss(sharded, me.rank(), step); });
    step_plainly(whole, 0.02, [&] {
      Tensor sum = torch::zeros({});
      for (int r = 0; r < me.size(); ++r) sum = sum + loss(whole, r, step);
      return sum;
    });
  }
}

template <template <template <class> class> class Model, class Loss, class Change>
void parity(Rank& me, Loss&& loss, Change&& change, double tolerance = 1e-5) {
  for (const bool reshard : {true, false})
    for (const int prefetch : {0, 2}) {
      Both<Model> both(change);
      FsdpSession session(both.sharded, me.comm, {.reshard_after_forward = reshard, .prefetch = prefetch});
      train(me, session, *both.sharded, *both.whole, loss);
      compare(me, session, *both.sharded, *both.whole, tolerance);
    }
}
template <template <template <class> class> class Model, class Loss>
void parity(Rank& me, Loss&& loss) {
  parity<Model>(me, loss, [](auto&) {});
}

// ---- models

struct BlockImpl : nn::Module {
  nn::Linear wide, narrow;
  explicit BlockImpl(int width)
      : wide(register_module("wide", nn::Linear(width, 2 * width + 1))),
        narrow(register_module("narrow", nn::Linear(2 * width + 1, width))) {}
  Tensor forward(const Tensor& x) { return x + narrow(torch::tanh(wide(x))); }
  Tensor encode(const Tensor& x, double by) { return narrow(torch::sigmoid(wide(x))) * by; }
  void only_biases() {
    for (const nn::Linear& linear : {wide, narrow}) Tensor(linear->weight).requires_grad_(false);
  }
};
TORCH_MODULE(Block);

template <template <class> class Wrapped>
struct Stack : nn::Module {
  nn::Linear stem = register_module("stem", nn::Linear(3, 5));
  Wrapped<Block> a = register_module("a", Wrapped<Block>(5)), b = register_module("b", Wrapped<Block>(5)),
                 c = register_module("c", Wrapped<Block>(5));
  Wrapped<nn::Linear> head = register_module("head", Wrapped<nn::Linear>(5, 2));
  Tensor scale = register_parameter("scale", torch::ones({}));
  Tensor trunk(const Tensor& x) { return c(b(a(stem(x)))); }
  Tensor forward(const Tensor& x) { return head(trunk(x)) * scale; }
};

const auto plain_loss = [](auto& net, int rank, int step) { return net.forward(inputs(rank, step)).pow(2).sum(); };

// ---- FSDP by hand

void after_forward(Rank& me) {
  for (const bool reshard : {true, false}) {
    Both<Stack> both;
    FsdpSession session(both.sharded, me.comm, {.reshard_after_forward = reshard, .prefetch = 0});
    session.micro_batch(0, [&] {
      auto& net = *both.sharded;
      const Tensor x = net.b(net.a(net.stem(inputs(0, 0))));
      const auto readable = [](const Tensor& parameter) {
        try {
          return parameter.sum().defined();
        } catch (const c10::Error&) {
          return false;
        }
      };
      me.that(readable(net.a->wide->weight) == !reshard, "the first unit after the second one's forward");
      me.that(readable(net.stem->weight) && readable(net.b->wide->weight), "root and current unit");
      if (!reshard) me.that(torch::equal(net.a->wide->weight, both.whole->a->wide->weight), "its values");
      me.that(torch::equal(net.b->wide->weight, both.whole->b->wide->weight), "values of the current unit");
      return net.head(net.c(x)).sum();
    });
  }
}

void one_unit_alone(Rank& me) {
  Both<Stack> both;
  FsdpSession session(both.sharded, me.comm);
  for (int round = 0; round < 3; ++round) {
    train(me, session, *both.sharded, *both.whole, plain_loss, 1, 2 * round);
    train(
        me, session, *both.sharded, *both.whole,
        [](auto& net, int rank, int step) {
          return net.b(inputs(rank, step, {4, 5})).pow(2).sum();
        },
        1, 2 * round + 1);
  }
  compare(me, session, *both.sharded, *both.whole);
}

template <template <class> class Wrapped>
struct Eight : nn::Module {
  nn::ModuleList list = register_module("list", nn::ModuleList());
  std::vector<Wrapped<nn::Linear>> layers;
  Eight() {
    for (int i = 0; i < 8; ++i) {
      layers.emplace_back(5, 5);
      list->push_back(layers.back());
    }
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x;
  }
};

void eight_units(Rank& me) {
  const auto loss = [](auto& net, int rank, int step) { return net.forward(inputs(rank, step, {4, 5})).pow(2).sum(); };
  parity<Eight>(me, loss);
}

/// A head that is called for each chunk of a loss. Losses of chunks are added up; a backward of its own for each chunk,
/// inside the forward, is refused by name.
void chunked_head(Rank& me) {
  const auto chunked = [](auto& net, const Tensor& x) {
    Tensor sum = torch::zeros({});
    for (const Tensor& chunk : net.trunk(x).chunk(2)) sum = sum + (net.head(chunk) * net.scale).pow(2).sum();
    return sum;
  };
  Both<Stack> both;
  FsdpSession session(both.sharded, me.comm);
  for (int step = 0; step < 4; ++step) {
    for (int i = 0; i < 3; ++i)
      session.micro_batch(i, [&] { return chunked(*both.sharded, inputs(10 * i + me.rank(), step)); });
    session.step(0.02);
    step_plainly(*both.whole, 0.02, [&] {
      Tensor sum = torch::zeros({});
      for (int r = 0; r < me.size(); ++r)
        for (int i = 0; i < 3; ++i) sum = sum + both.whole->forward(inputs(10 * i + r, step)).pow(2).sum();
      return sum;
    });
  }
  compare(me, session, *both.sharded, *both.whole, 1e-4);  // sums of many losses

  Both<Stack> other;
  FsdpSession refused(other.sharded, me.comm);
  refused.fsdp.before_forward(refused.run);
  const Tensor hidden = other.sharded->trunk(inputs(me.rank(), 0)).detach().requires_grad_(true);
  try {
    other.sharded->head(hidden).sum().backward();
    me.that(false, "a backward inside the forward goes unnoticed");
  } catch (const std::exception& error) {
    me.that(std::string(error.what()).find("unit 'head'") != std::string::npos, error.what());
  }
}

/// Several micro-batches, one reduction.
void one_reduction(Rank& me) {
  for (const bool reshard : {true, false}) {
    Both<Stack> both;
    FsdpSession session(both.sharded, me.comm, {.reshard_after_forward = reshard, .reduce = dt::at_boundary});
    for (int step = 0; step < 4; ++step) {
      const auto before = me.comm.counts();
      for (int i = 0; i < 3; ++i)
        session.micro_batch(
            i, [&] { return plain_loss(*both.sharded, 10 * i + me.rank(), step); }, 3);
      session.fsdp.reduce(session.run);
      const auto sent = me.comm.counts().of(dt::Collective::reduce_scatter) - before.of(dt::Collective::reduce_scatter);
      me.that(sent.calls == (me.size() == 1 ? 0 : 5), "reductions: " + std::to_string(sent.calls) + " of 5");
      session.step(0.02);
      step_plainly(*both.whole, 0.02, [&] {
        Tensor sum = torch::zeros({});
        for (int r = 0; r < me.size(); ++r)
          for (int i = 0; i < 3; ++i) sum = sum + plain_loss(*both.whole, 10 * i + r, step);
        return sum;
      });
    }
    compare(me, session, *both.sharded, *both.whole, 1e-4);  // sums of many losses
  }
}

template <template <class> class Wrapped>
struct OuterOf : nn::Module {
  struct Impl : nn::Module {
    nn::Linear own = register_module("own", nn::Linear(5, 5));
    Wrapped<Block> inner = register_module("inner", Wrapped<Block>(5));
    Tensor forward(const Tensor& x) { return inner(own(x)); }
  };
  Wrapped<nn::ModuleHolder<Impl>> outer = register_module("outer", Wrapped<nn::ModuleHolder<Impl>>());
  Wrapped<nn::Linear> stem = register_module("stem", Wrapped<nn::Linear>(3, 5));
  Tensor forward(const Tensor& x) { return outer(outer(stem(x))); }
};

void two_forwards(Rank& me) {
  parity<OuterOf>(me, [](auto& net, int rank, int step) {
    const Tensor first = net.forward(inputs(rank, step)), second = net.forward(inputs(rank, step + 100));
    return torch::tanh(first * second).sum() + torch::tanh(first).sum();
  });
}

/// Two forwards, then two backwards, the last forward's first. The other way round is refused by name.
void two_backwards(Rank& me) {
  const auto losses = [](auto& net, int rank, int step) {
    return std::array{net.forward(inputs(rank, step)).pow(2).sum(), net.forward(inputs(rank, step + 50)).pow(2).sum()};
  };
  Both<Stack> both;
  FsdpSession session(both.sharded, me.comm);
  for (int step = 0; step < 3; ++step) {
    session.fsdp.before_forward(session.run);
    const auto mine = losses(*both.sharded, me.rank(), step);
    session.fsdp.before_backward(session.run);
    mine[1].backward();
    mine[0].backward();
    session.fsdp.after_backward(session.run);
    session.step(0.02);
    step_plainly(*both.whole, 0.02, [&] {
      Tensor sum = torch::zeros({});
      for (int r = 0; r < me.size(); ++r)
        for (const Tensor& loss : losses(*both.whole, r, step)) sum = sum + loss;
      return sum;
    });
  }
  compare(me, session, *both.sharded, *both.whole);

  Both<Stack> other;
  FsdpSession refused(other.sharded, me.comm);
  refused.fsdp.before_forward(refused.run);
  const auto mine = losses(*other.sharded, me.rank(), 0);
  refused.fsdp.before_backward(refused.run);
  mine[0].backward();
  try {
    mine[1].backward();
    me.that(false, "backward in the order of the forwards goes unnoticed");
  } catch (const std::exception& error) {
    me.that(std::string(error.what()).find("unit 'head'") != std::string::npos, error.what());
  }
}

// ---- ties

/// One table to look up and to score with, by the functional use of one parameter of a unit.
struct TiedImpl : nn::Module {
  Tensor table;
  nn::Linear middle;
  explicit TiedImpl(int64_t rows)
      : table(register_parameter("table", torch::randn({rows, 6}))),
        middle(register_module("middle", nn::Linear(6, 6))) {}
  Tensor forward(const Tensor& tokens) {
    return torch::linear(torch::tanh(middle(torch::embedding(table, tokens).mean(1))), table);
  }
};
TORCH_MODULE(Tied);

template <template <class> class Wrapped>
struct TiedInside : nn::Module {
  Wrapped<Tied> unit = register_module("unit", Wrapped<Tied>(4 * 3 + 1));
  Tensor forward(const Tensor& tokens) { return unit(tokens); }
};

/// A module's own parameter that is another's: registered in two units, or in one and outside.
struct LookupImpl : nn::Module {
  Tensor weight;
  explicit LookupImpl(Tensor shared) : weight(register_parameter("weight", shared)) {}
  Tensor forward(const Tensor& tokens) { return torch::embedding(weight, tokens).mean(1); }
};
TORCH_MODULE(Lookup);
struct ScoreImpl : nn::Module {
  Tensor weight, bias;
  explicit ScoreImpl(Tensor shared)
      : weight(register_parameter("weight", shared)),
        bias(register_parameter("bias", torch::zeros({shared.size(0)}))) {}
  Tensor forward(const Tensor& x) { return torch::linear(x, weight, bias); }
};
TORCH_MODULE(Score);

template <template <class> class Wrapped>
struct TiedAcross : nn::Module {
  Tensor table = torch::randn({13, 6});
  Wrapped<Lookup> lookup = register_module("lookup", Wrapped<Lookup>(table));
  Wrapped<nn::Linear> middle = register_module("middle", Wrapped<nn::Linear>(6, 6));
  Wrapped<Score> score = register_module("score", Wrapped<Score>(lookup->weight));
  Tensor forward(const Tensor& tokens) { return score(torch::tanh(middle(lookup(tokens)))); }
};
template <template <class> class Wrapped>
struct TiedToRoot : nn::Module {
  Tensor table = torch::randn({13, 6});
  Wrapped<Lookup> lookup = register_module("lookup", Wrapped<Lookup>(table));
  Score score = register_module("score", Score(lookup->weight));
  Tensor forward(const Tensor& tokens) { return score(torch::tanh(lookup(tokens))); }
};

const auto token_loss = [](auto& net, int rank, int step) {
  auto generator = at::detail::createCPUGenerator(uint64_t(1000 * step + rank));
  const Tensor tokens = torch::randint(0, 13, {4, 3}, generator, torch::kLong);
  return torch::cross_entropy_loss(net.forward(tokens), tokens.select(1, 0));
};

void tied_inside(Rank& me) {
  parity<TiedInside>(me, token_loss);
}

void tied_uneven(Rank& me) {
  Both<TiedInside> both;
  const Tensor before = both.whole->unit->table.detach().clone();
  FsdpSession session(both.sharded, me.comm);
  train(me, session, *both.sharded, *both.whole, token_loss);
  compare(me, session, *both.sharded, *both.whole);
  const Tensor moved = (both.sharded->unit->table.detach() - before).abs().amax(1);
  me.that(moved.min().item<float>() > 1e-6, "a row has not moved");
}

void tied_across(Rank& me) {
  parity<TiedAcross>(me, token_loss);
  parity<TiedToRoot>(me, token_loss);
  Both<TiedAcross> both;
  FsdpSession session(both.sharded, me.comm);
  int64_t tables = 0;
  for (const auto& slot : session.run.gradients.slots) tables += slot.shape == std::vector<int64_t>{13, 6};
  me.that(tables == 1, "the table is one parameter");
  train(me, session, *both.sharded, *both.whole, token_loss, 5);
  session.fsdp.teardown(session.run);
  me.that(torch::equal(both.sharded->lookup->weight, both.sharded->score->weight), "both uses have the same bits");
  me.that(both.sharded->lookup->weight.is_same(both.sharded->score->weight), "both uses are one tensor");
}

// ---- entries, layouts, frozen parts

void other_entries(Rank& me) {
  parity<Stack>(me, [](auto& net, int rank, int step) {
    const Tensor x = net.stem(inputs(rank, step));
    const auto encode = [&](auto& unit) {
      if constexpr (requires { unit->call(&BlockImpl::encode, x, 0.5); })
        return unit->call(&BlockImpl::encode, x, 0.5);
      else
        return unit->encode(x, 0.5);
    };
    return net.head(encode(net.a) + net.b(x)).pow(2).sum() + net.c(x).sum();
  });
}

void contiguous(Rank& me) {
  Both<Stack> both;
  FsdpSession session(both.sharded, me.comm, {.prefetch = 0});
  auto& net = *both.sharded;
  int64_t looked = 0;
  const auto look = [&](const nn::Module& module) {
    for (const auto& item : module.named_parameters()) {
      me.that(item.value().is_contiguous(), item.key() + " is not contiguous");
      me.that(item.value().grad().is_contiguous(), "the gradient of " + item.key() + " is not contiguous");
      ++looked;
    }
  };
  session.micro_batch(0, [&] {
    Tensor x = net.a(net.stem(inputs(me.rank(), 0)));
    look(*net.a);
    look(*net.stem);
    return net.head(net.b(x)).sum();
  });
  for (const auto& slot : session.run.gradients.slots)
    me.that(slot.held.is_contiguous() && slot.main.is_contiguous(), "the piece of " + slot.name);
  me.that(looked == 6, "parameters seen");
}

const auto frozen_weights = [](auto& net) {
  net.a->only_biases();
  net.b->only_biases();
};

void frozen_inside(Rank& me) {
  parity<Stack>(me, plain_loss, frozen_weights);
  Both<Stack> both(frozen_weights);
  const Tensor before = both.whole->a->wide->weight.clone();
  FsdpSession session(both.sharded, me.comm);
  train(me, session, *both.sharded, *both.whole, plain_loss, 1);
  int64_t trainable = 0;
  for (const auto& unit : session.fsdp.units().units()) {
    int64_t elements = 0;
    for (const auto& segment : unit.segments()) elements += segment.layout().size();
    if (unit.name() == "a" || unit.name() == "b")
      me.that(elements >= 16 && elements < 16 + me.size() * 2 + 2 * me.size(),
              unit.name() + " reduces its biases only");
    trainable += elements;
  }
  for (const auto& segment : session.fsdp.units().root().segments()) trainable += segment.layout().size();
  const auto counts = me.comm.counts();
  std::size_t most = 0;
  session.micro_batch(0, [&] {
    const Tensor x = both.sharded->a(both.sharded->stem(inputs(me.rank(), 7)));
    x.register_hook([&](const Tensor&) { most = session.gradient_bytes(); });
    return both.sharded->head(both.sharded->c(both.sharded->b(x))).sum() * both.sharded->scale;
  });
  const auto sent = me.comm.counts().of(dt::Collective::reduce_scatter) - counts.of(dt::Collective::reduce_scatter);
  me.that(sent.bytes == (me.size() - 1) * trainable / me.size() * 4, "bytes reduced: " + std::to_string(sent.bytes));
  me.that(most > 0 && most <= std::size_t(2 * 4 * trainable), "gradient bytes: " + std::to_string(most));
  session.fsdp.reduce(session.run);
  session.fsdp.after_step(session.run);
  session.fsdp.teardown(session.run);
  me.that(torch::equal(both.sharded->a->wide->weight, before), "a frozen weight has changed");
}

void frozen_between(Rank& me) {
  Both<Stack> both([](auto& net) {
    for (Tensor& parameter : net.b->parameters()) parameter.requires_grad_(false);
    for (Tensor& parameter : net.stem->parameters()) parameter.requires_grad_(false);
  });
  FsdpSession session(both.sharded, me.comm);
  for (int round = 0; round < 3; ++round) {
    {
      torch::NoGradGuard no_grad;
      session.fsdp.before_forward(session.run);
      const Tensor out = both.sharded->forward(inputs(me.rank(), 77));
      session.fsdp.finish_forward(session.run);
      me.near((out - both.whole->forward(inputs(me.rank(), 77))).abs().max().item<double>(), 1e-5, "an evaluation");
    }
    train(me, session, *both.sharded, *both.whole, plain_loss, 2, 2 * round);
  }
  compare(me, session, *both.sharded, *both.whole);
}

void frozen_repeated(Rank& me) {
  parity<Stack>(
      me,
      [](auto& net, int rank, int step) {
        Tensor x = net.stem(inputs(rank, step));
        for (int i = 0; i < 3; ++i) {
          Tensor y;
          {
            torch::NoGradGuard no_grad;
            y = net.c(net.a(x));
          }
          x = net.b(net.a(x)) + y + net.b(y);
        }
        return net.head(net.c(x)).pow(2).mean() * net.scale;
      },
      [](auto& net) {
        for (Tensor& parameter : net.b->parameters()) parameter.requires_grad_(false);
      },
      1e-4);
}

void frozen_trunk(Rank& me) {
  const auto freeze = [](auto& net) {
    for (auto* unit : {&net.a, &net.b, &net.c})
      for (Tensor& parameter : (*unit)->parameters()) parameter.requires_grad_(false);
  };
  parity<Stack>(me, plain_loss, freeze);
}

// ---- containers

struct Named {
  Tensor out;
  std::optional<Tensor> more;
  std::map<std::string, Tensor> by_name;
  int count = 0;
};
struct ManyImpl : nn::Module {
  nn::Linear one = register_module("one", nn::Linear(5, 5)), two = register_module("two", nn::Linear(5, 5));
  Named named(const Tensor& x) { return {one(x), two(x), {{"sum", one(x) + two(x)}}, 3}; }
  std::tuple<Tensor, std::vector<Tensor>> tuple(const Named& in) {
    return {one(in.out), {two(*in.more), in.by_name.at("sum") * 2}};
  }
  std::map<std::string, Tensor> map(const std::tuple<Tensor, std::vector<Tensor>>& in) {
    return {{"a", one(std::get<0>(in))}, {"b", two(std::get<1>(in)[0]) + std::get<1>(in)[1]}};
  }
  std::pair<Tensor, Tensor> two_of(const Tensor& x) { return {one(x), two(x)}; }
  Tensor forward(const Tensor& x) { return one(x); }
};
TORCH_MODULE(Many);

template <template <class> class Wrapped>
struct Containers : nn::Module {
  Wrapped<Many> first = register_module("first", Wrapped<Many>()), second = register_module("second", Wrapped<Many>()),
                third = register_module("third", Wrapped<Many>());

  template <class Member, class... Args>
  static auto call(Wrapped<Many>& unit, Member member, Args&&... args) {
    if constexpr (requires { unit->call(member, std::forward<Args>(args)...); })
      return unit->call(member, std::forward<Args>(args)...);
    else
      return (*unit.get().*member)(std::forward<Args>(args)...);
  }
  Tensor through(const Tensor& x) {
    const Named named = call(first, &ManyImpl::named, x);
    const auto tuple = call(second, &ManyImpl::tuple, named);
    auto map = call(third, &ManyImpl::map, tuple);
    return map["a"] * map["b"] + named.by_name.at("sum");
  }
};

void containers(Rank& me) {
  parity<Containers>(me, [](auto& net, int rank, int step) {
    return net.through(inputs(rank, step, {4, 5})).pow(2).mean();
  });
  // Under autocast every one of these tensors is low, whatever it is in, and the gradients are those without units.
  Both<Containers> both;
  FsdpSession session(both.sharded, me.comm, {}, dt::BF16Mixed::traits);
  const auto loss = [&](auto& net, int rank, int step) {
    const dt::AutocastGuard guard(c10::kCPU, torch::kBFloat16);
    const Tensor out = net.through(inputs(rank, step, {4, 5}));
    me.that(out.scalar_type() == torch::kBFloat16, "computed in bf16");
    return out.to(torch::kFloat32).pow(2).mean();
  };
  session.micro_batch(0, [&] { return loss(*both.sharded, me.rank(), 0); });
  session.fsdp.reduce(session.run);
  std::map<std::string, Tensor> sums;
  for (int r = 0; r < me.size(); ++r) {
    both.whole->zero_grad();
    loss(*both.whole, r, 0).backward();
    for (const auto& item : both.whole->named_parameters()) {
      Tensor& sum = sums[item.key()];
      sum = sum.defined() ? sum + item.value().grad() : item.value().grad().clone();
    }
  }
  for (const auto& slot : session.run.gradients.slots) {
    const Tensor expected = sums[slot.name].reshape({-1}).narrow(0, slot.piece_begin, slot.main.numel());
    // A weight that is used twice: here its gradients are added up in fp32, there in bf16.
    const double scale = slot.main.numel() == 0 ? 1 : expected.abs().max().item<double>();
    me.near(slot.main.numel() == 0 ? 0 : (slot.main - expected).abs().max().item<double>(), 0x1p-6 * scale,
            "gradient of " + slot.name);
  }
}

void unused_output(Rank& me) {
  parity<Containers>(me, [](auto& net, int rank, int step) {
    const Tensor x = inputs(rank, step, {4, 5});
    const auto both = net.call(net.first, &ManyImpl::two_of, x);
    const auto others = net.call(net.second, &ManyImpl::two_of, both.first);
    return net.third(others.second + x).pow(2).mean();  // without both.second and others.first
  });
}

template <template <class> class Wrapped>
struct Normed : nn::Module {
  struct Impl : nn::Module {
    nn::Linear linear = register_module("linear", nn::Linear(5, 5));
    nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(5));
    Tensor forward(const Tensor& x) { return torch::tanh(norm(linear(x))); }
  };
  Wrapped<nn::ModuleHolder<Impl>> unit = register_module("unit", Wrapped<nn::ModuleHolder<Impl>>());
  Wrapped<nn::Linear> head = register_module("head", Wrapped<nn::Linear>(5, 2));
  Tensor forward(const Tensor& x) { return head(unit(unit(x))); }
};

void normed_twice(Rank& me) {
  parity<Normed>(me, [](auto& net, int rank, int step) {
    return net.forward(inputs(rank, step, {6, 5})).pow(2).sum();
  });
}

void unused_unit(Rank& me) {
  const auto loss = [](auto& net, int rank, int step) {
    return (net.head(net.c(net.a(net.stem(inputs(rank, step))))) * net.scale).pow(2).sum();
  };
  parity<Stack>(me, loss);
  Both<Stack> both;
  FsdpSession session(both.sharded, me.comm);
  train(me, session, *both.sharded, *both.whole, plain_loss, 1);
  session.micro_batch(0, [&] { return loss(*both.sharded, me.rank(), 1); });
  std::size_t root = 0;
  for (const auto& segment : session.fsdp.units().root().segments()) root += segment.full_bytes();
  me.that(session.full_bytes() == root,
          "more than the root is left after backward: " + std::to_string(session.full_bytes()) + " bytes, not " +
              std::to_string(root));
  session.fsdp.reduce(session.run);  // ends what is still on its way
  me.that(session.gradient_bytes() == 0, "whole gradients are left after the reduction");
  me.that(session.slot("b.wide.weight").main.abs().sum().item<float>() == 0, "its gradient is zero");
}

void integer_parameter(Rank& me) {
  struct Impl : nn::Module, dt::GathersLow {
    nn::Linear linear = register_module("linear", nn::Linear(5, 5));
    Tensor order = register_parameter("order", torch::tensor({4, 3, 2, 1, 0}), false);
    Tensor forward(const Tensor& x) { return linear(x.index_select(1, order)); }
  };
  struct Model : nn::Module {
    dt::Unit<Impl> unit = register_module("unit", dt::Unit<Impl>());
  };
  torch::manual_seed(3);
  auto net = std::make_shared<Model>();
  FsdpSession session(net, me.comm, {}, dt::BF16Mixed::traits);
  const auto forward = [&] {
    const dt::AutocastGuard guard(c10::kCPU, torch::kBFloat16);
    return net->unit(inputs(me.rank(), 0, {4, 5}));
  };
  {
    torch::NoGradGuard no_grad;
    session.fsdp.before_forward(session.run);
    me.that(forward().scalar_type() == torch::kBFloat16, "the first forward is low");
    session.fsdp.finish_forward(session.run);
  }
  for (int step = 0; step < 2; ++step) session.train(0.1, [&] { return forward().to(torch::kFloat32).pow(2).sum(); });
  me.that(session.slot("unit.linear.weight").main.scalar_type() == torch::kFloat32, "gradients are fp32");
  me.that(session.slot("unit.linear.weight").held.scalar_type() == torch::kFloat32, "pieces are fp32");
  session.fsdp.teardown(session.run);
  me.that(torch::equal(net->unit->order, torch::tensor({4, 3, 2, 1, 0})), "the integers are what they were");
}

void stable_shards(Rank& me) {
  Both<Stack> both;
  FsdpSession session(both.sharded, me.comm);
  const auto places = [&] {
    std::vector<const void*> all;
    for (const auto& slot : session.run.gradients.slots)
      for (const Tensor& tensor : {slot.held, slot.main}) all.push_back(tensor.const_data_ptr());
    return all;
  };
  const auto before = places();
  train(me, session, *both.sharded, *both.whole, plain_loss);
  me.that(places() == before, "a shard has moved");
}

void changed_shards(Rank& me) {
  Both<Stack> both;
  FsdpSession session(both.sharded, me.comm);
  {
    torch::NoGradGuard no_grad;
    for (auto& slot : session.run.gradients.slots) slot.held.mul_(0.5).add_(0.01);
    for (Tensor& parameter : both.whole->parameters()) parameter.mul_(0.5).add_(0.01);
  }
  train(me, session, *both.sharded, *both.whole, plain_loss);
  compare(me, session, *both.sharded, *both.whole);
}

void scalars(Rank& me) {
  Both<Stack> both;
  FsdpSession session(both.sharded, me.comm);
  const double mine = double(session.slot("scale").held.numel());
  double total = 0;
  for (double one : me.comm.all_gather(std::span<const double>(&mine, 1))) total += one;
  me.that((me.size() == 1 ? mine : total) == 1, "one rank has the scalar");
  train(me, session, *both.sharded, *both.whole, plain_loss);
  me.that(both.whole->scale.item<float>() != 1, "it moves");
  compare(me, session, *both.sharded, *both.whole);
}

void delays(Rank& me) {
  std::vector<dt::FSDP::Options> all{{}, {.reshard_after_forward = false}, {.shard_group = 1}};
  if (me.size() % 2 == 0) {
    all.push_back({.reshard_after_forward = dt::to_ranks(2)});
    all.push_back({.shard_group = me.size() / 2});
  }
  for (const dt::FSDP::Options& options : all) {
    Both<Stack> both;
    FsdpSession session(both.sharded, me.comm, options);
    std::mt19937 random(unsigned(me.rank() + 1));
    const auto dawdle = [&] { std::this_thread::sleep_for(std::chrono::milliseconds(random() % 8)); };
    for (int step = 0; step < 5; ++step) {
      dawdle();
      session.micro_batch(0, [&] {
        auto& net = *both.sharded;
        Tensor x = net.stem(inputs(me.rank(), step));
        for (auto* unit : {&net.a, &net.b, &net.c}) {
          dawdle();
          x = (*unit)(x);
          x.register_hook([&](const Tensor&) { dawdle(); });
        }
        const Tensor loss = (net.head(x) * net.scale).pow(2).sum();
        dawdle();
        return loss;
      });
      dawdle();
      session.step(0.02);
      step_plainly(*both.whole, 0.02, [&] {
        Tensor sum = torch::zeros({});
        for (int r = 0; r < me.size(); ++r) sum = sum + plain_loss(*both.whole, r, step);
        return sum;
      });
    }
    compare(me, session, *both.sharded, *both.whole);
  }
}

const std::vector<Case> cases{
    {"C-01 parameters after a forward", after_forward},
    {"C-09 a step through one unit alone", one_unit_alone},
    {"C-11 eight units, gathered ahead", eight_units},
    {"a head called for each chunk of a loss, and backward for all", chunked_head},
    {"C-24 several micro-batches, one reduction", one_reduction},
    {"C-18 two forwards, one backward, nested units", two_forwards},
    {"C-85 two forwards, then two backwards", two_backwards},
    {"C-19 tied parameters in one unit", tied_inside},
    {"C-20 tied parameters in one unit, 4N+1 rows", tied_uneven},
    {"C-21 C-91 B108 B109 B110 tied parameters across units", tied_across},
    {"C-26 an entry point other than forward", other_entries},
    {"C-29 parameters and gradients are contiguous", contiguous},
    {"C-30 B017 B099 frozen weights and trainable biases in one unit", frozen_inside},
    {"C-31 every other unit frozen, an evaluation in between", frozen_between},
    {"C-32 frozen and trainable units several times", frozen_repeated},
    {"C-84 a frozen trunk", frozen_trunk},
    {"C-36 an integer parameter, and the first forward without gradients", integer_parameter},
    {"C-37 C-48 lists, tuples, structs and maps between units", containers},
    {"C-46 an output that the loss does not use", unused_output},
    {"C-47 a unit that the forward does not use", unused_unit},
    {"C-87 a unit with batch norm twice", normed_twice},
    {"C-53 shards stay where they are", stable_shards},
    {"C-63 a shard changed before the first forward", changed_shards},
    {"C-56 a parameter without dimensions", scalars},
    {"C-06 C-61 delays before every phase", delays},
};

}  // namespace

int main(int argc, char** argv) {
  return main_of_cases(argc, argv, cases);
}
