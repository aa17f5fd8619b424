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

Tensor first_of(const Tensor& out) { return out; }
template <class... Rest>
Tensor first_of(const std::tuple<Tensor, Rest...>& out) { return std::get<0>(out); }

/// One step under autocast, with FSDP and without: the same loss and the same gradients, bit for bit.
template <class M, class Options, class... Inputs>
void check_module(const char* name, const Options& options, bool low, Inputs... inputs) {
  INFO(name);
  torch::manual_seed(7);
  auto whole = std::make_shared<typename M::Impl>(options);
  torch::manual_seed(7);
  dt::Unit<M> unit(options);
  const auto loss = [&](auto& module) {
    const dt::AutocastGuard guard(c10::kCPU, torch::kBFloat16);
    return first_of(module->forward(inputs...)).to(torch::kFloat32).pow(2).mean();
  };
  FsdpSession session(unit.ptr(), {}, {}, bf16_mixed);
  for (const auto& parameter : unit->parameters()) CHECK(parameter.scalar_type() == (low ? torch::kBFloat16 : torch::kFloat32));
  const double sharded = session.micro_batch(0, [&] { return loss(unit); });
  session.fsdp.reduce(session.run);
  const Tensor plain = loss(whole);
  plain.backward();
  CHECK(sharded == plain.item<double>());
  for (const auto& item : whole->named_parameters()) {
    INFO(item.key());
    const auto& slot = session.slot(item.key());
    CHECK(slot.held.scalar_type() == torch::kFloat32);
    REQUIRE(item.value().grad().defined());
    CHECK(item.value().grad().abs().max().template item<float>() > 0);
    CHECK(torch::equal(slot.main, item.value().grad().reshape({-1})));
  }
  session.fsdp.teardown(session.run);
  CHECK(largest_difference(*unit, *whole) == 0);
}

}  // namespace

TEST_CASE("modules that gather low compute under autocast what they would with fp32 weights", "[fsdp][low]") {
  namespace nn = torch::nn;
  torch::manual_seed(2);
  const Tensor flat = torch::randn({4, 6}), sequence = torch::randn({5, 2, 6});
  check_module<nn::Linear>("Linear", nn::LinearOptions(6, 3), true, flat);
  check_module<nn::Linear>("Linear on a sequence", nn::LinearOptions(6, 3), true, sequence);
  check_module<nn::Conv1d>("Conv1d", nn::Conv1dOptions(2, 3, 3), true, torch::randn({4, 2, 8}));
  check_module<nn::Conv2d>("Conv2d", nn::Conv2dOptions(2, 3, 3), true, torch::randn({4, 2, 8, 8}));
  check_module<nn::Conv3d>("Conv3d", nn::Conv3dOptions(2, 3, 3), true, torch::randn({2, 2, 4, 4, 4}));
  check_module<nn::ConvTranspose1d>("ConvTranspose1d", nn::ConvTranspose1dOptions(2, 3, 3), true, torch::randn({4, 2, 8}));
  check_module<nn::ConvTranspose2d>("ConvTranspose2d", nn::ConvTranspose2dOptions(2, 3, 3), true, torch::randn({4, 2, 8, 8}));
  check_module<nn::ConvTranspose3d>("ConvTranspose3d", nn::ConvTranspose3dOptions(2, 3, 3), true, torch::randn({2, 2, 4, 4, 4}));
  check_module<nn::Bilinear>("Bilinear", nn::BilinearOptions(6, 6, 2), true, flat, flat);
  check_module<nn::RNN>("RNN", nn::RNNOptions(6, 4), true, sequence);
  check_module<nn::LSTM>("LSTM", nn::LSTMOptions(6, 4), true, sequence);
  check_module<nn::GRU>("GRU", nn::GRUOptions(6, 4), true, sequence);
  check_module<nn::RNNCell>("RNNCell", nn::RNNCellOptions(6, 4), true, flat);
  check_module<nn::LSTMCell>("LSTMCell", nn::LSTMCellOptions(6, 4), true, flat);
  check_module<nn::GRUCell>("GRUCell", nn::GRUCellOptions(6, 4), true, flat);
  check_module<nn::MultiheadAttention>("MultiheadAttention", nn::MultiheadAttentionOptions(6, 2), true, sequence, sequence, sequence);
  check_module<nn::LayerNorm>("LayerNorm", nn::LayerNormOptions({6}), false, flat);
  check_module<nn::BatchNorm1d>("BatchNorm1d", nn::BatchNormOptions(6), false, flat);
  check_module<nn::Embedding>("Embedding", nn::EmbeddingOptions(10, 3), false, torch::arange(10));
}
