// SPDX-License-Identifier: Apache-2.0
// Parameters that are cut over the ranks: whole for the time of a scope.
#include <dovetail/callback/lambda_callback.hpp>
#include <dovetail/optim/adamw.hpp>
#include <dovetail/optim/sgd.hpp>
#include <dovetail/policies.hpp>
#include <dovetail/testing/live_bytes.hpp>
#include <dovetail/trainer.hpp>

#include <torch/nn.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/conformance_rank.hpp"

namespace {

namespace dt = dovetail;
using conformance::Case, conformance::Rank;
using dt::testing::LiveBytes;
using torch::Tensor;

struct BlockImpl : torch::nn::Module {
  torch::nn::Linear wide, narrow;
  torch::nn::LayerNorm norm;
  explicit BlockImpl(int width)
      : wide(register_module("wide", torch::nn::Linear(width, 2 * width + 1))),
        narrow(register_module("narrow", torch::nn::Linear(2 * width + 1, width))),
        norm(register_module("norm", torch::nn::LayerNorm(std::vector<int64_t>{width}))) {}
  Tensor forward(const Tensor& x) { return x + narrow(torch::tanh(wide(norm(x)))); }
};
TORCH_MODULE(Block);

/// A unit with parameters of its own and a unit inside.
struct OuterImpl : torch::nn::Module {
  torch::nn::Linear own = register_module("own", torch::nn::Linear(5, 5));
  dt::Unit<Block> inner = register_module("inner", dt::Unit<Block>(5));
  Tensor forward(const Tensor& x) { return inner(own(x)); }
};
TORCH_MODULE(Outer);

/// Odd sizes, one parameter of one element, one that is frozen, one that is not contiguous.
struct Net : torch::nn::Module {
  torch::nn::Linear stem = register_module("stem", torch::nn::Linear(3, 5));
  dt::Unit<Block> a = register_module("a", dt::Unit<Block>(5));
  dt::Unit<Outer> b = register_module("b", dt::Unit<Outer>());
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

using Hook = std::function<void(dt::LoopState&, Net&)>;

/// What is trained, with what is done meanwhile.
struct Task {
  double rate = 0.05;
  std::function<void(Net&)> in_step{}, in_build{};
  std::function<void(Net&, const dt::Parameters&)> before_optimizers{};
  mutable std::shared_ptr<Net> made = nullptr;

  auto configure_model() const {
    made = std::make_shared<Net>();
    if (in_build) in_build(*made);
    return made;
  }
  auto configure_optimizers(const dt::Parameters& parameters) const {
    if (before_optimizers) before_optimizers(*made, parameters);
    return dt::AdamW(parameters, {.lr = rate});
  }
  Tensor training_step(Net& net, const dt::Batch& batch, dt::StepContext&) const {
    if (in_step) in_step(net);
    return (net.forward(batch.data) - batch.target).square().mean();
  }
};

struct Fitted {
  std::shared_ptr<Net> model;
  dt::CommunicationCounts sent;
};

const auto nothing = [](dt::LoopState&, Net&) {};

/// Three steps; `hook` after each.
template <class S, class P>
Fitted fit(const Task& task, const Hook& hook = nothing, S strategy = {}, P precision = {}) {
  const int ranks = dt::current_ranks().world_size;
  torch::manual_seed(3);
  const Tensor x = torch::randn({6 * ranks, 3}), y = torch::randn({6 * ranks, 2});
  dt::Trainer<S, P> trainer({.batch_size = 2, .shuffle = false, .progress = false}, strategy, precision);
  const auto result =
      trainer.fit(task, dt::TensorDataset(x, y),
                  dt::LambdaCallback{.on_train_step_end = [&](auto& s) { hook(s, static_cast<Net&>(*s.run.module)); }});
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
    const Fitted seen = fit(Task{}, look, every_unit, precision), plain = fit(Task{}, nothing, every_unit, precision);
    const Fitted kept = fit(Task{}, look, dt::FSDP{{.reshard_after_forward = false, .keep_below = 0}}, precision);
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
    const Fitted end = fit(Task{.rate = 0}, write, strategy, precision);
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
}

void on_rank_0(Rank& me) {
  each_precision([&](auto precision, const std::string& name) {
    Tensor last;
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
      me.that(me.size() == 1 || sent.calls >= segments_of_net, name + ": nothing was gathered");
    };
    const Fitted end = fit(Task{}, look, every_unit, precision);
    if (me.rank() == 0) me.that(last.equal(flat(*end.model)), name + ": rank 0 saw something else than the end");
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
  const auto error_of = [&](const Task& task, const Hook& hook = nothing) {
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
  me.that(says(error_of(Task{}, forget(3)), "still open when the fit ends"), "left open at the end");
  forgotten.reset();
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

const std::vector<Case> cases{
    {"C-52 C-70 C-92 whole parameters, in the dtype in which they are stored", shows_whole},
    {"C-70 whole parameters written back, masters too", write_back},
    {"C-55 whole parameters on rank 0 only", on_rank_0},
    {"C-70 scopes of parts and in each other", parts_and_nesting},
    {"C-70 scopes that are refused", refusals},
};

}  // namespace

int main(int argc, char** argv) {
  LiveBytes::start();
  return conformance::main_of_cases(argc, argv, cases);
}
