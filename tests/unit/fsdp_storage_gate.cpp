// SPDX-License-Identifier: Apache-2.0
// Memory that is there only for a time: what reads it at another time gets an error, from every operator, and no crash.
#include <dovetail/precision/autocast_guard.hpp>
#include <dovetail/shard/flat_home.hpp>
#include <dovetail/shard/storage_gate.hpp>

#include <torch/nn.h>

#include <functional>

#include <catch2/catch.hpp>

using dovetail::StorageGate;
using torch::Tensor;

TEST_CASE("reading behind a closed gate, or what never had memory, is an error of ours", "[fsdp][gate]") {
  const auto dtype = GENERATE(torch::kFloat32, torch::kBFloat16);
  const bool had_memory = GENERATE(true, false);
  StorageGate gate(torch::ones({64}, dtype), "the text");
  const Tensor flat = had_memory ? gate.buffer() : dovetail::without_memory(64, torch::dtype(dtype), "the text");
  const Tensor square = flat.view({8, 8}), row = flat.narrow(0, 8, 8), filter = flat.view({8, 8, 1, 1});
  const Tensor other = torch::ones({8, 8}, dtype), vector = torch::ones({8}, dtype),
               image = torch::ones({1, 8, 3, 3}, dtype);
  gate.close();
  namespace F = torch::nn::functional;
  const std::vector<std::pair<const char*, std::function<void()>>> readers = {
      {"sum", [&] { square.sum(); }},
      {"clone", [&] { square.clone(); }},
      {"copy from", [&] { other.clone().copy_(square); }},
      {"copy to", [&] { Tensor(square).copy_(other); }},
      {"fill", [&] { Tensor(square).fill_(1); }},
      {"zero", [&] { Tensor(flat).zero_(); }},
      {"add", [&] { square + other; }},
      {"add to", [&] { other.clone().add_(square); }},
      {"relu in place", [&] { Tensor(square).relu_(); }},
      {"matmul", [&] { torch::matmul(other, square); }},
      {"matmul of a vector", [&] { torch::matmul(vector, square); }},
      {"transposed matmul", [&] { torch::mm(other, square.t()); }},
      {"batched matmul", [&] { torch::bmm(other.unsqueeze(0), square.unsqueeze(0)); }},
      {"linear", [&] { F::linear(other, square, row); }},
      {"addmm", [&] { torch::addmm(row, other, other); }},
      {"convolution", [&] { torch::conv2d(image, filter); }},
      {"convolution bias",
       [&] {
         torch::conv2d(image, other.view({8, 8, 1, 1}), row);
       }},
      {"transposed convolution", [&] { torch::conv_transpose2d(image, filter); }},
      {"embedding", [&] { torch::embedding(square, torch::zeros({2}, torch::kLong)); }},
      {"layer norm", [&] { torch::layer_norm(other, {8}, row, row); }},
      {"batch norm", [&] { torch::batch_norm(other, row, row, {}, {}, true, 0.1, 1e-5, false); }},
      {"group norm", [&] { torch::group_norm(image, 2, row, row); }},
      {"softmax", [&] { torch::softmax(square, 1); }},
      {"index", [&] { square.index_select(0, torch::zeros({1}, torch::kLong)); }},
      {"gather",
       [&] {
         square.gather(0, torch::zeros({1, 8}, torch::kLong));
       }},
      {"cast", [&] { square.to(torch::kFloat64); }},
      {"contiguous", [&] { square.t().contiguous(); }},
      {"item", [&] { flat[3].item<float>(); }},
      {"norm", [&] { square.norm(); }},
      {"cat",
       [&] {
         torch::cat({square, other});
       }},
      {"stack",
       [&] {
         torch::stack({square, other});
       }},
      {"equal", [&] { torch::equal(square, other); }},
      {"foreach", [&] { at::_foreach_add(std::vector<Tensor>{other}, std::vector<Tensor>{square}); }},
      {"attention",
       [&] {
         torch::scaled_dot_product_attention(square.view({1, 1, 8, 8}), other.view({1, 1, 8, 8}),
                                             other.view({1, 1, 8, 8}));
       }},
      {"gru cell",
       [&] {
         torch::gru_cell(other.narrow(1, 0, 2), other.narrow(1, 0, 2), flat.narrow(0, 0, 12).view({6, 2}),
                         flat.narrow(0, 0, 12).view({6, 2}));
       }},
      {"lstm",
       [&] {
         const Tensor weight = flat.narrow(0, 0, 16).view({8, 2}), hidden = torch::zeros({1, 8, 2}, dtype);
         torch::lstm(other.view({4, 8, 2}), {hidden, hidden}, {weight, weight}, false, 1, 0.0, false, false, false);
       }},
      {"data pointer", [&] { square.data_ptr(); }},
      {"const data pointer", [&] { square.const_data_ptr(); }},
  };
  for (const bool autocast : {false, true}) {
    const dovetail::AutocastGuard guard(c10::kCPU, autocast ? std::optional(torch::kBFloat16) : std::nullopt);
    for (const auto& [name, read] : readers) {
      INFO(name << (autocast ? " under autocast" : ""));
      CHECK_THROWS_WITH(read(), Catch::Matchers::Contains("the text"));
    }
  }
  // Views are no reads.
  CHECK(square.t().narrow(0, 2, 3).sizes() == std::vector<int64_t>{3, 8});
  CHECK(dovetail::alias_like(flat, 0, square).sizes() == square.sizes());
}

TEST_CASE("views see what is written while the gate is open", "[fsdp][gate]") {
  StorageGate gate(torch::ones({6}), "closed");
  const Tensor view = gate.buffer().narrow(0, 2, 2);
  CHECK(gate.bytes() == 24);
  for (int round = 0; round < 3; ++round) {
    gate.close();
    gate.close();
    CHECK_FALSE(gate.is_open());
    gate.open();
    gate.open();
    gate.buffer().fill_(round);
    CHECK(torch::equal(view, torch::full({2}, float(round))));
  }
}

TEST_CASE("backward finds what it saved after the gate was closed and opened", "[fsdp][gate]") {
  StorageGate gate(torch::full({4}, 3.0f), "closed");
  Tensor weight = gate.buffer().variable_data().view({2, 2}).variable_data().requires_grad_();
  const Tensor x = torch::ones({1, 2}).requires_grad_();
  const Tensor loss = torch::linear(x, weight).sum();
  gate.close();
  CHECK_THROWS(torch::autograd::grad({loss}, {x}, {}, true));
  gate.open();
  gate.buffer().fill_(3);
  loss.backward();
  CHECK(torch::equal(x.grad(), torch::full({1, 2}, 6.0f)));
}
