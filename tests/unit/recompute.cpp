// SPDX-License-Identifier: Apache-2.0
// Units that compute their activations once more in backward instead of keeping them.
#include "support/fsdp_session.hpp"

#include <dovetail/precision/autocast_guard.hpp>

#include <catch2/catch.hpp>

namespace dt = dovetail;
using Catch::Matchers::Contains;
using torch::Tensor;

namespace {

/// Random, with batch statistics, in low precision under autocast; it counts its forwards and watches an activation.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int width)
      : in(register_module("in", torch::nn::Linear(width, 8))),
        norm(register_module("norm", torch::nn::BatchNorm1d(8))),
        out(register_module("out", torch::nn::Linear(8, width))) {}
  Tensor forward(const Tensor& x) {
    ++forwards;
    const Tensor hidden = torch::tanh(norm(in(x)));
    activation = hidden.storage().getWeakStorageImpl();
    return x + out(torch::dropout(hidden, 0.4, is_training()));
  }
  std::tuple<Tensor, Tensor> two(const Tensor& x, double factor) {
    ++forwards;
    const Tensor hidden = in(x)*factor;
    return {out(hidden), hidden.argmax(1)};
  }
  Tensor in_place(Tensor x) { return out(torch::tanh(in(x.mul_(2)))); }
  void nothing(const Tensor& x) { out(in(x)); }

  torch::nn::Linear in;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear out;
  int forwards = 0;
  c10::weak_intrusive_ptr<c10::StorageImpl> activation{c10::intrusive_ptr<c10::StorageImpl>()};
};
TORCH_MODULE(Block);

struct Net : torch::nn::Module {
  explicit Net(bool recomputes) {
    torch::manual_seed(3);
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), dt::Unit<Block>(5)));
      blocks.back()->recompute_activations(recomputes);
    }
  }
  Tensor forward(Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x;
  }
  int forwards() {
    int all = 0;
    for (auto& block : blocks) all += block->forwards;
    return all;
  }
  std::vector<dt::Unit<Block>> blocks;
};

Tensor rows() {
  torch::manual_seed(4);
  return torch::randn({6, 5});
}

/// Gradients, then buffers, then the input's gradient, after two steps of backward.
std::vector<Tensor> trained(bool recomputes, std::optional<torch::ScalarType> low = {}) {
  Net net(recomputes);
  Tensor x = rows().requires_grad_();
  torch::manual_seed(9);
  for (int step = 0; step < 2; ++step) {
    Tensor out;
    {
      const dt::AutocastGuard autocast(c10::kCPU, low);
      out = net.forward(x);
    }
    out.square().mean().backward();
  }
  CHECK(net.forwards() == (recomputes ? 12 : 6));
  std::vector<Tensor> all;
  for (const Tensor& parameter : net.parameters()) all.push_back(parameter.grad());
  for (const Tensor& buffer : net.buffers()) all.push_back(buffer);
  all.push_back(x.grad());
  all.push_back(torch::rand({3}));  // the generator is where it was, too
  return all;
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const dt::Error& error) {
    CHECK(error.code() == dt::ExitCode::user_code);
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace

TEST_CASE("recomputed activations give the same bits: dropout, batch norm, autocast", "[fsdp][recompute]") {
  for (const auto low :
       {std::optional<torch::ScalarType>(), std::optional(torch::kBFloat16), std::optional(torch::kHalf)}) {
    const auto kept = trained(false, low), recomputed = trained(true, low);
    REQUIRE(kept.size() == recomputed.size());
    for (std::size_t i = 0; i < kept.size(); ++i) CHECK(torch::equal(kept[i], recomputed[i]));
  }
}

TEST_CASE("activations are gone after a forward that recomputes", "[fsdp][recompute]") {
  for (const bool recomputes : {false, true}) {
    Net net(recomputes);
    const Tensor out = net.forward(rows());
    for (auto& block : net.blocks) CHECK(block->activation.expired() == recomputes);
    CHECK(out.requires_grad());
  }
  Net net(true);
  const torch::NoGradGuard no_grad;
  CHECK_FALSE(net.forward(rows()).requires_grad());
  CHECK(net.forwards() == 3);
}

TEST_CASE("other entry points recompute: several results, one of them unused, one without gradient",
          "[fsdp][recompute]") {
  std::vector<Tensor> gradients[2];
  for (const bool recomputes : {false, true}) {
    Net net(recomputes);
    auto [scores, best] = net.blocks[0]->call(&BlockImpl::two, rows(), 0.5);
    CHECK_FALSE(best.requires_grad());
    net.blocks[1]->call(&BlockImpl::two, rows(), 0.5);  // no backward goes there
    scores.sum().backward();
    CHECK(net.blocks[0]->forwards == (recomputes ? 2 : 1));
    CHECK(net.blocks[1]->forwards == 1);
    CHECK_FALSE(net.blocks[1]->in->weight.grad().defined());
    gradients[recomputes] = {net.blocks[0]->in->weight.grad(), net.blocks[0]->out->bias.grad()};
  }
  for (int i = 0; i < 2; ++i) CHECK(torch::equal(gradients[0][i], gradients[1][i]));
}

TEST_CASE("frozen parameters and inputs without gradient recompute", "[fsdp][recompute]") {
  for (const bool recomputes : {false, true}) {
    Net net(recomputes);
    for (Tensor& parameter : net.blocks[0]->parameters()) parameter.requires_grad_(false);
    net.blocks[1]->in->weight.requires_grad_(false);
    net.forward(rows()).sum().backward();
    CHECK_FALSE(net.blocks[1]->in->weight.grad().defined());
    CHECK(net.blocks[1]->in->bias.grad().defined());
    CHECK(net.blocks[0]->forwards == 1);  // nothing behind it needs a gradient
  }
}

TEST_CASE("what cannot be recomputed is said", "[fsdp][recompute]") {
  Net net(true);
  CHECK_THAT(
      refusal([&] { net.blocks[0]->call(&BlockImpl::in_place, rows().requires_grad_().clone()).sum().backward(); }),
      Contains("changed in place"));
  CHECK_THAT(refusal([&] {
               Tensor x = rows().requires_grad_();
               Tensor loss = net.forward(x).square().sum();
               torch::autograd::grad({loss}, {x}, {}, {}, /*create_graph=*/true);
             }),
             Contains("no second derivatives"));
  CHECK_THAT(refusal([&] {
               const Tensor loss = net.forward(rows()).sum();
               const Tensor other = loss * 2;
               loss.backward();
               other.backward();
             }),
             Contains("a second time"));
  CHECK_THAT(refusal([&] { net.blocks[0]->call(&BlockImpl::nothing, rows()); }),
             Contains("cannot recompute its activations"));
}

TEST_CASE("C-13 recomputation under FSDP: as without, and nothing is gathered twice", "[fsdp][recompute]") {
  for (const bool reshards : {false, true}) {
    std::vector<Tensor> weights[2];
    for (const bool recomputes : {false, true}) {
      auto net = std::make_shared<Net>(recomputes);
      FsdpSession session(net, {}, {.reshard_after_forward = reshards});
      torch::manual_seed(9);
      for (int step = 0; step < 3; ++step) session.train(0.1, [&] { return net->forward(rows()).square().mean(); });
      CHECK(net->forwards() == (recomputes ? 18 : 9));
      session.fsdp.teardown(session.run);
      for (const Tensor& parameter : net->parameters()) weights[recomputes].push_back(parameter.detach().clone());
      for (const Tensor& buffer : net->buffers()) weights[recomputes].push_back(buffer.clone());
    }
    for (std::size_t i = 0; i < weights[0].size(); ++i) CHECK(torch::equal(weights[0][i], weights[1][i]));
  }
}

TEST_CASE("recomputation sends nothing more", "[fsdp][recompute]") {
  for (const bool reshards : {false, true}) {
    dt::CommunicationCounts sent[2];
    for (const bool recomputes : {false, true}) {
      const dt::Communicator two =
          dt::Communicator::connect({.rank = 0, .world_size = 2, .how = {.kind = dt::Rendezvous::Kind::recorded}});
      auto net = std::make_shared<Net>(recomputes);
      FsdpSession session(net, two, {.reshard_after_forward = reshards});
      for (int step = 0; step < 3; ++step) session.train(0.01, [&] { return net->forward(rows()).square().mean(); });
      CHECK(net->forwards() == (recomputes ? 18 : 9));
      sent[recomputes] = two.counts();
    }
    CHECK(sent[0].of(dt::Collective::all_gather).calls > 0);
    for (std::size_t kind = 0; kind < sent[0].each.size(); ++kind) CHECK(sent[0].each[kind] == sent[1].each[kind]);
  }
}
