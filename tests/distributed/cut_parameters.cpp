// SPDX-License-Identifier: Apache-2.0
// Parameters that are cut over the ranks: whole for the time of a scope, and cut while the model is built.
#include <dovetail/callback/lambda_callback.hpp>
#include <dovetail/optim/adamw.hpp>
#include <dovetail/optim/sgd.hpp>
#include <dovetail/policies.hpp>
#include <dovetail/testing/live_bytes.hpp>
#include <dovetail/testing/recorded_rank.hpp>
#include <dovetail/trainer.hpp>

#include <torch/nn.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/conformance_rank.hpp"
#include "support/nested_models.hpp"

namespace {

namespace dt = dovetail;
using conformance::Case, conformance::Rank;
using dt::testing::LiveBytes;
using support::Block, support::Outer;
using torch::Tensor;

/// Odd sizes, one parameter of one element, one that is frozen, one that is not contiguous.
struct Net : torch::nn::Module {
  torch::nn::Linear stem = register_module("stem", torch::nn::Linear(3, 5));
  dt::Unit<Block> a = register_module("a", dt::Unit<Block>(5));
  dt::Unit<Outer<dt::Unit>> b = register_module("b", dt::Unit<Outer<dt::Unit>>());
  Tensor frozen = register_parameter("frozen", torch::ones({5}), /*requires_grad=*/false);
  Tensor scale = register_parameter("scale", torch::rand({5, 2}).t());
  Tensor forward(const Tensor& x) {
    const Tensor y = b(a(stem(x))) + frozen;
    return torch::matmul(y, scale.to(y.scalar_type()).t()).to(torch::kFloat32);
  }
};
constexpr int64_t segments_of_net = 4;  // root, a, b, b.inner; all but b also in fp32 where Linear is gathered low

Tensor flat(const torch::nn::Module& model) {
  std::vector<Tensor> all;
  for (const Tensor& parameter : model.parameters()) all.push_back(parameter.detach().reshape({-1}));
  return torch::cat(all);
}

/// What is trained, with what is done meanwhile.
template <class Model = Net>
struct TaskOf {
  double rate = 0.05;
  std::function<void(Model&)> in_step{}, in_build{};
  std::function<void(const dt::Parameters&)> before_optimizers{};

  auto configure_model() const {
    auto made = std::make_shared<Model>();
    if (in_build) in_build(*made);
    return made;
  }
  auto configure_optimizers(const dt::Parameters& parameters) const {
    if (before_optimizers) before_optimizers(parameters);
    return dt::AdamW(parameters, {.lr = rate});
  }
  torch::Tensor training_step(Model& net, const dt::Batch& batch, dt::StepContext&) const {
    if (in_step) in_step(net);
    return (net.forward(batch.data) - batch.target).square().mean();
  }
};
using Task = TaskOf<>;

template <class Model>
struct Fitted {
  std::shared_ptr<Model> model;
  dt::CommunicationCounts sent;
};

template <class Model>
using HookOf = std::function<void(dt::LoopState&, Model&)>;

/// Three steps; `hook` after each.
template <class S, class P, class Model = Net>
Fitted<Model> fit(const TaskOf<Model>& task, const std::type_identity_t<HookOf<Model>>& hook, S strategy = {},
                  P precision = {}) {
  const int ranks = dt::current_ranks().world_size;
  torch::manual_seed(3);
  const Tensor x = torch::randn({6 * ranks, 3}), y = torch::randn({6 * ranks, 2});
  dt::Trainer<S, P> trainer({.batch_size = 2, .shuffle = false, .progress = false}, strategy, precision);
  const auto call = [&](dt::LoopState& state) {
    if (hook) hook(state, static_cast<Model&>(*state.run.module));
  };
  const auto result = trainer.fit(task, dt::TensorDataset(x, y), dt::LambdaCallback{.on_train_step_end = call});
  return {result.model, result.communication};
}

const dt::FSDP every_unit{{.keep_below = 0}};

/// `look(strategy, precision)` for every strategy and the precisions that store, gather and keep parameters each in
/// another way.
template <class Look>
void each_precision(Look&& look) {
  look(dt::FP32{}, "fp32");
  look(dt::BF16Mixed{}, "bf16-mixed");
  look(dt::BF16True{}, "bf16-true");
  look(dt::MasterWeights<dt::BF16>{}, "master-bf16");
}

std::string message(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void shows_whole(Rank& me) {
  each_precision([&]<class P>(P precision, const std::string& name) {
    Tensor last;
    const auto look = [&](dt::LoopState& state, Net& net) {
      const auto before = state.run.comm.counts();
      {
        const auto whole = dt::full_parameters(net);
        last = flat(net);
        const auto sent = state.run.comm.counts() - before;
        const bool mixed = P::traits.compute != P::traits.storage;
        me.that(sent.calls == (me.size() == 1 ? 0 : segments_of_net + (mixed ? 3 : 0)),
                name + ": " + std::to_string(sent.calls) + " collectives");
        for (const auto& item : net.named_parameters())
          me.that(item.value().scalar_type() == dt::dtype_of(P::traits.storage),
                  name + ": " + item.key() + " is whole in another dtype than stored");
      }
      me.that(says(message([&] { net.a->wide->weight.sum(); }), "'a.wide.weight'"), name + ": not freed after it");
      me.that(says(message([&] { net.stem->weight.sum(); }), "root unit"), name + ": the root is not freed after it");
    };
    const auto seen = fit(Task{}, look, every_unit, precision), plain = fit(Task{}, {}, every_unit, precision);
    const auto kept = fit(Task{}, look, dt::FSDP{{.reshard_after_forward = false, .keep_below = 0}}, precision);
    me.that(flat(*kept.model).equal(flat(*plain.model)), name + ": looking changes bits of units that stay gathered");
    me.that(last.equal(flat(*seen.model)), name + ": whole parameters are not what the fit ends with");
    me.that(flat(*seen.model).equal(flat(*plain.model)), name + ": looking changes bits");
  });
}

/// What the callback writes is there at the end of the fit: the optimizer moves nothing.
template <class S>
void writes_under(Rank& me, S strategy, const std::string& strategy_name) {
  each_precision([&](auto precision, const std::string& precision_name) {
    const std::string name = strategy_name + ", " + precision_name;
    Tensor written, others, others_after;
    const auto masters = [](dt::LoopState& state) {
      std::vector<Tensor> all;
      for (const dt::Slot& slot : state.run.gradients.slots)
        if (slot.name != "a.wide.weight") all.push_back(slot.stepped.detach().reshape({-1}));
      return torch::cat(all);
    };
    const auto write = [&](dt::LoopState& state, Net& net) {
      if (state.step() != 2) return;
      others = masters(state);
      if (net.a->is_attached()) {
        const auto dropped = dt::full_parameters(net);
        torch::NoGradGuard no_grad;
        net.a->wide->weight.fill_(17);
      }
      try {
        if (net.a->is_attached()) {
          const auto left = dt::full_parameters(net, {.write_back = true});
          torch::NoGradGuard no_grad;
          net.a->wide->weight.fill_(17);
          throw std::runtime_error("the user's own");
        }
      } catch (const std::runtime_error&) {
      }
      {
        const auto whole = dt::full_parameters(net, {.write_back = true});
        torch::NoGradGuard no_grad;
        me.that(net.a->wide->weight.max().template item<double>() < 17, name + ": was written where it must not be");
        net.a->wide->weight[0].mul_(0.5);
        written = net.a->wide->weight.detach().clone();
      }
      others_after = masters(state);
    };
    const auto end = fit(Task{.rate = 0}, write, strategy, precision);
    me.that(end.model->a->wide->weight.equal(written), name + ": what was written is not there at the end");
    me.that(others.equal(others_after), name + ": other parameters, or their masters, changed");
    me.that(me.same_everywhere(flat(*end.model)), name + ": ranks differ");
  });
}

void write_back(Rank& me) {
  if (me.size() == 1) writes_under(me, dt::SingleDevice{}, "single");
  writes_under(me, dt::DDP{}, "ddp");
  writes_under(me, dt::Sharded<2>{}, "sharded-2");
  writes_under(me, every_unit, "fsdp");
  // And a fit that goes on from it goes on as under DDP.
  const auto halve = [](dt::LoopState& state, Net& net) {
    if (state.step() != 1) return;
    const auto whole = dt::full_parameters(net, {.write_back = true});
    torch::NoGradGuard no_grad;
    for (Tensor& parameter : net.parameters()) parameter.mul_(0.5);
  };
  const Tensor ddp = flat(*fit<dt::DDP, dt::FP32>(Task{}, halve).model);
  const Tensor fsdp = flat(*fit<dt::FSDP, dt::FP32>(Task{}, halve, every_unit).model);
  me.near((ddp - fsdp).abs().max().item<double>(), 1e-6, "a fit that goes on, from DDP's,");
  const auto give_halves = [](dt::LoopState& state, Net& net) {
    if (state.step() != 1) return;
    const auto whole = dt::full_parameters(net, {.write_back = true});
    for (Tensor& parameter : net.parameters()) parameter.set_data(parameter.detach() * 0.5);
  };
  me.that(fsdp.equal(flat(*fit<dt::FSDP, dt::FP32>(Task{}, give_halves, every_unit).model)),
          "set_data in a scope is not what writing is");
}

void on_rank_0(Rank& me) {
  each_precision([&](auto precision, const std::string& name) {
    Tensor last;
    bool gathers = true;
    const auto look = [&](dt::LoopState& state, Net& net) {
      LiveBytes& bytes = LiveBytes::start();
      const int64_t before_bytes = bytes.now();
      const auto before = state.run.comm.counts();
      const auto whole = dt::full_parameters(net, {.rank0_only = true});
      const auto sent = state.run.comm.counts() - before;
      if (me.rank() == 0) {
        last = flat(net);
      } else {
        me.that(bytes.now() == before_bytes, name + ": memory was taken where nothing is whole");
        me.that(says(message([&] { net.a->wide->weight.sum(); }), "'a.wide.weight'"), name + ": was read");
        me.that(says(message([&] { (void)dt::full_parameters(net); }), "inside of a scope with rank0_only"),
                name + ": opened for all inside of one for rank 0");
      }
      const auto gathered = state.run.comm.counts().of(dt::Collective::gather) - before.of(dt::Collective::gather);
      me.that(gathered == sent, name + ": more than gathers to rank 0");
      me.that(me.size() == 1 || !gathers || sent.calls >= segments_of_net, name + ": nothing was gathered");
    };
    for (const int group : {0, 1}) {  // all ranks share a replica of the model, or each has one
      gathers = group == 0;
      const auto end = fit(Task{}, look, dt::FSDP{{.keep_below = 0, .shard_group = group}}, precision);
      if (me.rank() == 0) me.that(last.equal(flat(*end.model)), name + ": rank 0 saw something else than the end");
    }
  });
}

void parts_and_nesting(Rank& me) {
  const auto look = [&](dt::LoopState& state, Net& net) {
    const auto calls = [&, before = state.run.comm.counts()] { return (state.run.comm.counts() - before).calls; };
    const int64_t one = me.size() == 1 ? 0 : 1;
    {
      const auto part = dt::full_parameters(*net.b->inner);
      me.that(calls() == one, "one unit takes one gather");
      me.that(net.b->inner->wide->weight.sum().item<double>() != 0, "the unit is not whole");
      me.that(says(message([&] { net.b->own->weight.sum(); }), "'b.own.weight'"), "more than the unit is whole");
      {
        const auto all = dt::full_parameters(net, {.write_back = true});
        me.that(calls() == one * segments_of_net, "what is whole was gathered again");
        torch::NoGradGuard no_grad;
        net.b->inner->wide->bias.fill_(0.25);
      }
      me.that(net.b->inner->wide->bias.eq(0.25).all().item<bool>(), "the inner scope freed what the outer one has");
      me.that(says(message([&] { net.b->own->weight.sum(); }), "'b.own.weight'"), "the inner scope's own is not freed");
    }
    me.that(calls() == one * segments_of_net, "the end of a scope sent something");
    const auto whole = dt::full_parameters(net);
    me.that(net.b->inner->wide->bias.eq(0.25).all().item<bool>(), "the inner scope's change is not written");
    const auto before = calls();
    torch::NoGradGuard no_grad;
    const Tensor y = net.forward(torch::ones({1, 3}));
    me.that(y.isfinite().all().item<bool>() && calls() == before, "a forward inside gathers");
  };
  fit<dt::FSDP, dt::FP32>(Task{}, look, every_unit);
}

void refusals(Rank& me) {
  const auto error_of = [&](const Task& task, const HookOf<Net>& hook = {}) {
    return message([&] { fit<dt::FSDP, dt::FP32>(task, hook, every_unit); });
  };
  const auto open = [](Net& net) { const auto whole = dt::full_parameters(net); };
  me.that(says(error_of(Task{.in_step = open}), "while a forward or a backward runs"), "opened in training_step");
  std::unique_ptr<dt::FullParameters> forgotten;
  const auto forget = [&](int64_t step) {
    return [&, step](dt::LoopState& state, Net& net) {
      if (state.step() == step) forgotten = std::make_unique<dt::FullParameters>(net);
    };
  };
  me.that(says(error_of(Task{}, forget(1)), "still open when a forward begins"), "left open at the next step");
  forgotten.reset();
  // The model is whole after it, and the end of the scope that comes after that leaves it alone.
  for (const bool writes : {false, true}) {
    std::shared_ptr<torch::nn::Module> model;
    std::unique_ptr<dt::FullParameters> outlives;
    const auto keep = [&](dt::LoopState& state, Net& net) {
      model = net.shared_from_this();
      if (state.step() < 3) return;
      outlives = std::make_unique<dt::FullParameters>(net, dt::FullParametersOptions{.write_back = writes});
      torch::NoGradGuard no_grad;
      net.a->wide->weight.fill_(17);
    };
    me.that(says(error_of(Task{}, keep), "still open when the fit ends"), "left open at the end");
    const Tensor trained = flat(*fit<dt::FSDP, dt::FP32>(Task{}, {}, every_unit).model);
    me.that(flat(*model).equal(trained), "what a scope left open has written came into the model");
    outlives.reset();
    me.that(flat(*model).equal(trained), "the late end of a scope has undone the model");
  }
  // Likewise where an exception ends the fit; on several ranks the model stays cut, and says so.
  std::shared_ptr<Net> model;
  std::unique_ptr<dt::FullParameters> outlives;
  const auto throws = [&](dt::LoopState& state, Net& net) {
    model = std::static_pointer_cast<Net>(net.shared_from_this());
    if (state.step() < 2) return;
    outlives = std::make_unique<dt::FullParameters>(net);
    throw std::runtime_error("the user's own");
  };
  me.that(error_of(Task{}, throws) == "the user's own", "an exception beside a scope left open");
  const auto reads = [&] { return message([&] { model->a->wide->weight.sum(); }); };
  for (const char* when : {"before", "after"}) {
    me.that(me.size() == 1 ? reads() == "no error" : says(reads(), "fit ended by an exception"),
            std::string(when) + " the late end of the scope: " + reads());
    outlives.reset();
  }
  Net net;
  me.that(says(message([&] { (void)dt::full_parameters(net, {.write_back = true, .rank0_only = true}); }),
               "cannot write back what only rank 0 has"),
          "options that exclude each other");
  const Tensor before = flat(net);
  {
    const auto whole = dt::full_parameters(net, {.rank0_only = true});
    me.that(flat(net).equal(before), "a model of nobody is not left alone");
  }
}

// ---- deferred building

const dt::FSDP deferred{{.keep_below = 0, .deferred_building = true}};

/// The same fit with and without: bits, and what is sent.
template <class P, class Model>
void same_bits(Rank& me, const TaskOf<Model>& task, P precision, const std::string& name, bool sends_the_same,
               int64_t keep_below = 0, int shard_group = 0) {
  const auto whole = fit(task, {}, dt::FSDP{{.keep_below = keep_below, .shard_group = shard_group}}, precision);
  const auto built = fit(
      task, {}, dt::FSDP{{.keep_below = keep_below, .shard_group = shard_group, .deferred_building = true}}, precision);
  me.that(flat(*built.model).equal(flat(*whole.model)), name + ": other bits than built whole");
  me.that(me.same_everywhere(flat(*built.model)), name + ": ranks differ");
  if (sends_the_same)
    me.that(
        built.sent.of(dt::Collective::reduce_scatter) == whole.sent.of(dt::Collective::reduce_scatter) &&
            built.sent.calls == whole.sent.calls,
        name + ": " + std::to_string(built.sent.calls) + " collectives instead of " + std::to_string(whole.sent.calls));
}

void built_in_parts(Rank& me) {
  int number = 0;  // of the precision
  const auto look = [&](auto precision, const std::string& name) {
    Task task;
    int seen = 0;
    task.in_build = [&](Net& net) { seen += !says(message([&] { net.a->wide->weight.sum(); }), "no error"); };
    task.before_optimizers = [&](const dt::Parameters& parameters) {
      for (const dt::Parameter& parameter : parameters)
        me.that(parameter.tensor.is_leaf() && parameter.tensor.isfinite().all().item<bool>(),
                name + ": '" + parameter.name + "' has no memory when optimizers are made");
    };
    same_bits(me, task, precision, name, true);
    me.that(seen == 1, name + ": nothing was cut");
    // One of these for each precision and number of ranks.
    const auto chosen = [&](int which) { return support::long_tests() || (number + me.size()) % 3 == which; };
    if (chosen(0)) {
      seen = 0;
      same_bits(me, task, precision, name + ", small units kept", true, 100);
      me.that(seen == 1, name + ": the large unit was not cut");
    }
    if (chosen(1)) {
      seen = 0;
      same_bits(me, task, precision, name + ", all units kept", true, 1 << 16);
      me.that(seen == 0, name + ": a unit was cut that stays gathered");
    }
    if (chosen(2)) same_bits(me, task, precision, name + ", a replica on each rank", true, 0, 1);
    ++number;
  };
  each_precision(look);
  look(dt::FP64{}, "fp64");
  look(dt::MasterWeights<dt::FP16>{}, "master-fp16");
}

/// Sixteen units of one size.
struct Tower : torch::nn::Module {
  static constexpr int64_t width = 384, unit = (width * width + width) * 4, whole = 16 * unit;
  std::vector<dt::Unit<torch::nn::Linear>> layers;
  Tower() {
    for (int i = 0; i < 16; ++i)
      layers.push_back(
          register_module("layer" + std::to_string(i), dt::Unit<torch::nn::Linear>(int64_t(width), int64_t(width))));
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x.to(torch::kFloat32);
  }
};

struct Bytes {
  int64_t building = 0, set_up = 0;  ///< the most, in configure_model, and up to the optimizers
};

template <class P>
Bytes bytes_of(dt::FSDP strategy, P precision) {
  LiveBytes& bytes = LiveBytes::start();
  Bytes seen;
  const torch::Tensor x = torch::ones({dt::current_ranks().world_size, Tower::width});
  const int64_t before = bytes.now();
  bytes.reset_peak();
  TaskOf<Tower> task;
  task.in_build = [&](Tower&) { seen.building = bytes.peak() - before; };
  task.before_optimizers = [&](const dt::Parameters&) { seen.set_up = bytes.peak() - before; };
  dt::Trainer<dt::FSDP, P> trainer({.max_steps = 0, .batch_size = 1, .progress = false}, strategy, precision);
  trainer.fit(task, dt::TensorDataset(x, x));
  return seen;
}

void memory_of_building(Rank& me) {
  const auto check = [&](int ranks, auto precision, const std::string& name) {
    const std::string what = std::to_string(ranks) + " ranks, " + name;
    const Bytes built = bytes_of(deferred, precision), plain = bytes_of(every_unit, precision);
    const int64_t part = Tower::whole / ranks, slack = 1 << 19;
    me.that(built.building <= part + Tower::unit + Tower::unit / ranks + slack && built.building >= part,
            what + ": configure_model took " + std::to_string(built.building) + " bytes at most");
    me.that(plain.building >= Tower::whole, what + ": a model built whole took less than itself");
    // Parts as cut, as they stay, and of main gradients; a whole unit and its gradient while it is wrapped.
    me.that(built.set_up <= 3 * part + 2 * Tower::unit + slack,
            what + ": set-up took " + std::to_string(built.set_up) + " bytes at most");
    if (me.rank() == 0)
      std::printf("       %s: %.2f of the model's bytes while it is built, %.2f in set-up; built whole %.2f, %.2f\n",
                  what.c_str(), double(built.building) / Tower::whole, double(built.set_up) / Tower::whole,
                  double(plain.building) / Tower::whole, double(plain.set_up) / Tower::whole);
  };
  each_precision([&](auto precision, const std::string& name) {
    check(me.size(), precision, name);
    if (me.size() > 1) return;
    const dt::testing::RecordedRank as(5, 8);
    check(8, precision, name);
  });
}

/// A linear layer with the weight of another.
struct TiedImpl : torch::nn::Module {
  Tensor weight, bias = register_parameter("bias", torch::rand({5}));
  explicit TiedImpl(const Tensor& other) : weight(register_parameter("weight", other)) {}
  Tensor forward(const Tensor& x) { return torch::nn::functional::linear(x, weight, bias); }
};
TORCH_MODULE(Tied);

/// Two layers, one of which another unit has too.
struct SharingImpl : torch::nn::Module {
  torch::nn::Linear own = register_module("own", torch::nn::Linear(5, 5)), shared;
  explicit SharingImpl(const torch::nn::Linear& given) : shared(register_module("shared", given)) {}
  Tensor forward(const Tensor& x) { return shared(torch::tanh(own(x))); }
};
TORCH_MODULE(Sharing);

struct Knotted : torch::nn::Module {
  dt::Unit<torch::nn::Linear> first = register_module("first", dt::Unit<torch::nn::Linear>(3, 5));
  dt::Unit<torch::nn::Linear> square = register_module("square", dt::Unit<torch::nn::Linear>(5, 5));
  dt::Unit<Tied> tied = register_module("tied", dt::Unit<Tied>(square->weight));
  torch::nn::Linear shared{5, 5};
  dt::Unit<Sharing> left = register_module("left", dt::Unit<Sharing>(shared));
  dt::Unit<Sharing> right = register_module("right", dt::Unit<Sharing>(shared));
  dt::Unit<Block> mixed = register_module("mixed", dt::Unit<Block>(5));
  dt::Unit<torch::nn::Linear> last = register_module("last", dt::Unit<torch::nn::Linear>(5, 2));
  Tensor forward(const Tensor& x) { return last(mixed(right(left(tied(square(first(x))))))).to(torch::kFloat32); }
};

void knots(Rank& me) {
  int number = 0;
  const auto chosen = [&] { return support::long_tests() || (number++ + me.size()) % 2 == 0; };
  each_precision([&](auto precision, const std::string& name) {
    TaskOf<Knotted> task;
    if (chosen()) same_bits(me, task, precision, name + ", tied and shared", false);
    task.in_build = [](Knotted& net) {
      net.first->weight.requires_grad_(false);
      for (Tensor& parameter : net.mixed->parameters()) parameter.requires_grad_(false);
    };
    if (chosen()) same_bits(me, task, precision, name + ", frozen later", false);
    task.in_build = [](Knotted& net) {
      const auto whole = dt::full_parameters(net, {.write_back = true});
      torch::NoGradGuard no_grad;
      for (Tensor& parameter : net.parameters())
        if (parameter.dim() == 2) torch::nn::init::normal_(parameter, 0, 0.3);
    };
    if (chosen()) same_bits(me, task, precision, name + ", filled in full_parameters", false);
    task.in_build = [](Knotted& net) {
      const auto whole = dt::full_parameters(*net.mixed->wide, {.write_back = true});
      net.mixed->to(torch::kFloat32);
      torch::NoGradGuard no_grad;
      net.mixed->wide->bias.fill_(0.125);
    };
    if (chosen()) same_bits(me, task, precision, name + ", one unit filled", false);
    ++number;  // the next precision begins with the other one
  });
}

struct ThrowsImpl : torch::nn::Module {
  dt::Unit<Block> inner = register_module("inner", dt::Unit<Block>(5));
  ThrowsImpl() { throw std::runtime_error("the user's own"); }
};
TORCH_MODULE(Throws);

/// Units that come and go before those of the model are there, which get the addresses and the memory of them.
struct Littered : torch::nn::Module {
  Littered() {
    for (int i = 0; i < 40; ++i) {
      const dt::Unit<Block> gone(5);
      const dt::Unit<torch::nn::Linear> other(5, 5);
      try {
        const dt::Unit<Throws> never;
      } catch (const std::runtime_error&) {
      }
    }
    net = register_module("net", std::make_shared<Net>());
  }
  Tensor forward(const Tensor& x) { return net->forward(x); }
  std::shared_ptr<Net> net;
};

void litter(Rank& me) {
  int cut = 0;
  TaskOf<Littered> task;
  task.in_build = [&](Littered& net) {
    for (const auto& item : net.named_parameters())
      cut += says(message([&] { item.value().sum(); }), "after deferred_building has cut them");
  };
  same_bits(me, task, dt::FP32{}, "litter", false);
  me.that(cut == 6 + 2 + 6, std::to_string(cut) + " parameters were cut");  // a, b and b.inner
}

void refused_building(Rank& me) {
  const auto error_of = [&](std::function<void(Net&)> in_build) {
    return message([&] { fit(Task{.in_build = std::move(in_build)}, {}, deferred, dt::FP32{}); });
  };
  const std::string read = error_of([](Net& net) { net.b->own->weight.sum(); });
  me.that(says(read, "'own.weight', 'own.bias'") && says(read, "in a scope of full_parameters"), "read: " + read);
  me.that(says(error_of([](Net& net) {
                 torch::NoGradGuard no_grad;
                 torch::nn::init::zeros_(net.a->norm->weight);
               }),
               "'wide.weight'"),
          "filled outside of the constructor");
  me.that(says(error_of([](Net& net) { net.a->forward(torch::ones({1, 5})); }), "'wide.weight'"), "run while built");
  std::unique_ptr<dt::FullParameters> left;
  me.that(says(error_of([&](Net& net) { left = std::make_unique<dt::FullParameters>(net); }),
               "still open when configure_model has ended"),
          "a scope left open");
  left.reset();
  const std::string late = message([&] {
    std::shared_ptr<torch::nn::Module> model;
    Task task{.in_build = [&](Net& net) { model = net.shared_from_this(); }};
    fit(task, {}, deferred, dt::FP32{});
    me.that(flat(*model).isfinite().all().item<bool>(), "the model is not whole after the fit");
  });
  me.that(late == "no error", late);
  if (me.size() == 1) return;
  try {
    fit(Task{.in_build =
                 [&](Net& net) {
                   const auto whole = dt::full_parameters(*net.a, {.write_back = true});
                   torch::NoGradGuard no_grad;
                   net.a->wide->weight.fill_(me.rank());
                 }},
        {}, deferred, dt::FP32{});
    me.that(false, "other weights on each rank went through");
  } catch (const dt::Error& error) {
    me.that(error.code() == dt::ExitCode::ranks_disagree && says(error.what(), "built other weights"), error.what());
  }
}

/// Ranks that construct other units, or open other scopes, would wait for each other: each is told so.
void other_units(Rank& me) {
  if (me.size() == 1) return;
  const int last = me.size() - 1;
  const auto refused = [&](const std::string& what, std::function<void(Net&)> on_the_last,
                           std::function<void(Net&)> elsewhere, const std::string& text) {
    try {
      fit(Task{.in_build = me.rank() == last ? std::move(on_the_last) : std::move(elsewhere)}, {}, deferred,
          dt::FP32{});
      me.that(false, what + " went through");
    } catch (const dt::Error& error) {
      me.that(error.code() == dt::ExitCode::ranks_disagree && says(error.what(), text) &&
                  says(error.what(), "rank " + std::to_string(last)),
              what + ": " + error.what());
    }
  };
  const auto nothing = [](Net&) {};
  const auto litter = [](Net&) { const dt::Unit<Block> gone(5); };
  const auto larger = [](Net&) { const dt::Unit<Block> gone(6); };
  const auto scope = [](Net& net) { const auto whole = dt::full_parameters(*net.a); };
  const auto other_scope = [](Net& net) { const auto whole = dt::full_parameters(*net.b); };
  const auto scope_of_new = [](Net&) {
    dt::Unit<Block> unit(6);
    const auto whole = dt::full_parameters(*unit);
  };
  refused("a unit more", litter, nothing, "a unit of");
  refused("a unit less", nothing, litter, "'nothing' where rank 0 has 'a unit of");
  refused("a unit of another size", larger, litter, "a unit of [13, 6] [13] [6, 13] [6] [6] [6] Float");
  refused("a scope more", scope, nothing, "a scope of full_parameters in configure_model, after 3 units");
  refused("a scope less", nothing, scope, "a scope of full_parameters in configure_model, after 3 units");
  refused("a scope of another unit", other_scope, scope, "constructed other units than rank 0: 'a unit of");
  refused("a scope of a unit that others lack", scope_of_new, scope, "after 4 units' where rank 0 has");
}

const std::vector<Case> cases{
    {"C-52 C-70 whole parameters, in the dtype in which they are stored", shows_whole},
    {"C-70 whole parameters written back, masters too", write_back},
    {"C-55 whole parameters on rank 0 only", on_rank_0},
    {"C-70 scopes of parts and in each other", parts_and_nesting},
    {"C-70 scopes that are refused", refusals},
    {"C-72 T10 T14 deferred building: the same bits, nothing without memory after set-up", built_in_parts},
    {"C-72 deferred building: memory", memory_of_building},
    {"C-22 C-72 deferred building: units that come and go", litter},
    {"C-72 deferred building: tied, shared, frozen and filled later", knots},
    {"C-72 deferred building: what is refused", refused_building},
    {"C-72 deferred building: ranks that construct other units", other_units},
};

}  // namespace

int main(int argc, char** argv) {
  LiveBytes::start();
  return conformance::main_of_cases(argc, argv, cases);
}
