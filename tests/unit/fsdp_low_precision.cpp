// SPDX-License-Identifier: Apache-2.0
// What is gathered in the compute format, and that autocast makes the same numbers of it.
#include <dovetail/precision/autocast_guard.hpp>
#include <dovetail/precision/mixed.hpp>
#include <dovetail/precision/true.hpp>

#include "support/fsdp_session.hpp"

#include <catch2/catch.hpp>

namespace dt = dovetail;
using torch::Tensor;

namespace {

constexpr dt::PrecisionTraits bf16_mixed = dt::BF16Mixed::traits;

Tensor first_of(const Tensor& out) {
  return out;
}
template <class... Rest>
Tensor first_of(const std::tuple<Tensor, Rest...>& out) {
  return std::get<0>(out);
}

/// One step under autocast, with FSDP and without: the same loss and the same gradients, bit for bit.
template <class M, class Options, class... Inputs>
void check_module(const char* name, const Options& options, bool low, Inputs... inputs) {
  INFO(name);
  torch::manual_seed(7);
  auto whole = std::make_shared<typename M::ContainedType>(options);
  torch::manual_seed(7);
  dt::Unit<M> unit(options);
  const auto loss = [&](auto module) {
    const dt::AutocastGuard guard(c10::kCPU, torch::kBFloat16);
    return first_of(module(inputs...)).to(torch::kFloat32).pow(2).mean();
  };
  FsdpSession session(unit.ptr(), {}, {}, bf16_mixed);
  for (const auto& parameter : unit->parameters())
    CHECK(parameter.scalar_type() == (low ? torch::kBFloat16 : torch::kFloat32));
  const double sharded = session.micro_batch(0, [&] { return loss(unit); });
  session.fsdp.reduce(session.run);
  const Tensor plain = loss(M(whole));
  plain.backward();
  CHECK(sharded == plain.item<double>());
  for (const auto& item : whole->named_parameters()) {
    INFO(item.key());
    const auto& slot = session.slot(item.key());
    CHECK(slot.held.scalar_type() == torch::kFloat32);
    REQUIRE(item.value().grad().defined());
    if (item.key() != "weight_hh")
      CHECK(item.value().grad().abs().max().template item<float>() > 0);  // a cell begins with zeros
    CHECK(torch::equal(slot.main, item.value().grad().reshape({-1})));
  }
  {
    torch::NoGradGuard no_grad;
    session.fsdp.before_forward(session.run);
    CHECK(loss(unit).template item<double>() == plain.item<double>());
  }
  session.fsdp.teardown(session.run);
  CHECK(largest_difference(*unit, *whole) == 0);
}

}  // namespace

TEST_CASE("P37 P39 modules that gather low compute under autocast what they would with fp32 weights", "[fsdp][low]") {
  namespace nn = torch::nn;
  torch::manual_seed(2);
  const Tensor flat = torch::randn({4, 6}), sequence = torch::randn({5, 2, 6});
  check_module<nn::Linear>("Linear", nn::LinearOptions(6, 3), true, flat);
  check_module<nn::Conv1d>("Conv1d", nn::Conv1dOptions(2, 3, 3), true, torch::randn({4, 2, 8}));
  check_module<nn::Conv2d>("Conv2d", nn::Conv2dOptions(2, 3, 3), true, torch::randn({4, 2, 8, 8}));
  check_module<nn::Conv3d>("Conv3d", nn::Conv3dOptions(2, 3, 3), true, torch::randn({2, 2, 4, 4, 4}));
  check_module<nn::ConvTranspose1d>("ConvTranspose1d", nn::ConvTranspose1dOptions(2, 3, 3), true,
                                    torch::randn({4, 2, 8}));
  check_module<nn::ConvTranspose2d>("ConvTranspose2d", nn::ConvTranspose2dOptions(2, 3, 3), true,
                                    torch::randn({4, 2, 8, 8}));
  check_module<nn::ConvTranspose3d>("ConvTranspose3d", nn::ConvTranspose3dOptions(2, 3, 3), true,
                                    torch::randn({2, 2, 4, 4, 4}));
  check_module<nn::Bilinear>("Bilinear", nn::BilinearOptions(6, 6, 2), false, flat, flat);
  check_module<nn::RNN>("RNN", nn::RNNOptions(6, 4), true, sequence);
  check_module<nn::LSTM>("LSTM", nn::LSTMOptions(6, 4), true, sequence);
  check_module<nn::GRU>("GRU", nn::GRUOptions(6, 4), true, sequence);
  check_module<nn::RNNCell>("RNNCell", nn::RNNCellOptions(6, 4), true, flat);
  check_module<nn::LSTMCell>("LSTMCell", nn::LSTMCellOptions(6, 4), true, flat);
  check_module<nn::GRUCell>("GRUCell", nn::GRUCellOptions(6, 4), true, flat);
  check_module<nn::MultiheadAttention>("MultiheadAttention", nn::MultiheadAttentionOptions(6, 2), true, sequence,
                                       sequence, sequence);
  check_module<nn::LayerNorm>("LayerNorm", nn::LayerNormOptions({6}), false, flat);
  check_module<nn::BatchNorm1d>("BatchNorm1d", nn::BatchNormOptions(6), false, flat);
  check_module<nn::Embedding>("Embedding", nn::EmbeddingOptions(10, 3), false, torch::arange(10));
}

TEST_CASE("a bias after a batched product is rounded once more", "[fsdp][low]") {
  // Linear on three dimensions adds its bias outside of the product, where autocast leaves an fp32 bias alone.
  torch::manual_seed(7);
  dt::Unit<torch::nn::Linear> unit(6, 3);
  const Tensor x = torch::randn({5, 2, 6}), exact = unit(x);
  FsdpSession session(unit.ptr(), {}, {}, bf16_mixed);
  torch::NoGradGuard no_grad;
  session.fsdp.before_forward(session.run);
  const dt::AutocastGuard guard(c10::kCPU, torch::kBFloat16);
  CHECK((unit(x) - exact).abs().max().item<float>() < 0.02);
}

namespace {

struct MixedImpl : torch::nn::Module, dt::GathersLow {
  Tensor weight = register_parameter("weight", torch::randn({6, 6}));
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(std::vector<int64_t>{6}));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(6, 6));
  Tensor forward(const Tensor& x) { return linear(norm(torch::matmul(x, weight))); }
};
TORCH_MODULE(Mixed);

}  // namespace

TEST_CASE("C-80 P37 a unit has a segment in the compute format and one in fp32", "[fsdp][low]") {
  dt::Unit<Mixed> unit;
  FsdpSession session(unit.ptr(), {}, {}, bf16_mixed);
  REQUIRE(session.fsdp.units().units().size() == 1);
  const auto& segments = session.fsdp.units().units()[0].segments();
  REQUIRE(segments.size() == 2);
  CHECK(unit->weight.scalar_type() == torch::kBFloat16);  // its module says so
  CHECK(unit->linear->weight.scalar_type() == torch::kBFloat16);
  CHECK(unit->norm->weight.scalar_type() == torch::kFloat32);
  std::size_t gathered = 0;
  session.micro_batch(0, [&] {
    const dt::AutocastGuard guard(c10::kCPU, torch::kBFloat16);
    const Tensor out = unit(torch::randn({4, 6})).to(torch::kFloat32).sum();
    gathered = session.full_bytes();
    return out;
  });
  CHECK(gathered == 2 * (36 + 36 + 6) + 4 * (6 + 6));
  // Pieces and their gradients are fp32 and side by side, whatever the format that is gathered.
  std::vector<Tensor> held, mains;
  for (const auto& slot : session.run.gradients.slots) {
    CHECK(slot.held.scalar_type() == torch::kFloat32);
    CHECK(slot.main.scalar_type() == torch::kFloat32);
    held.push_back(slot.held);
    mains.push_back(slot.main);
  }
  CHECK(dt::merge_adjacent(held, mains).size() == 1);
}

TEST_CASE("C-35 P41 true formats have one segment, and gradients that add up in fp32", "[fsdp][low]") {
  dt::Unit<torch::nn::Linear> unit(1, 1);
  unit->to(torch::kBFloat16);
  {
    torch::NoGradGuard no_grad;
    unit->weight.fill_(1);
  }
  FsdpSession session(unit.ptr(), {}, {}, dt::BF16True::traits);
  CHECK(session.fsdp.units().units()[0].segments().size() == 1);
  // 256 + 1 is 256 in bf16.
  session.micro_batch(0, [&] { return unit(torch::full({1, 1}, 256, torch::kBFloat16)).sum(); });
  session.micro_batch(1, [&] { return unit(torch::ones({1, 1}, torch::kBFloat16)).sum(); });
  CHECK(session.slot("weight").main.scalar_type() == torch::kFloat32);
  CHECK(session.slot("weight").main.item<float>() == 257);
  CHECK(session.slot("weight").held.scalar_type() == torch::kBFloat16);
  session.fsdp.teardown(session.run);
  CHECK(unit->weight.scalar_type() == torch::kBFloat16);
}

TEST_CASE("a model of several dtypes has a segment for each", "[fsdp][low]") {
  struct Both : torch::nn::Module {
    torch::nn::Linear one = register_module("one", torch::nn::Linear(2, 2)),
                      two = register_module("two", torch::nn::Linear(2, 2));
  };
  auto net = std::make_shared<Both>();
  net->two->to(torch::kFloat64);
  FsdpSession session(net);
  CHECK(session.fsdp.units().root().segments().size() == 2);
  CHECK(session.slot("two.weight").main.scalar_type() == torch::kFloat64);
  session.fsdp.teardown(session.run);
  CHECK(net->two->weight.scalar_type() == torch::kFloat64);
  CHECK(net->one->weight.scalar_type() == torch::kFloat32);
}
