// SPDX-License-Identifier: Apache-2.0
// Parts of models whose units lie in each other, with odd sizes.
#pragma once

#include <torch/nn.h>

#include <vector>

namespace support {

struct BlockImpl : torch::nn::Module {
  torch::nn::Linear wide, narrow;
  torch::nn::LayerNorm norm;
  explicit BlockImpl(int width)
      : wide(register_module("wide", torch::nn::Linear(width, 2 * width + 1))),
        narrow(register_module("narrow", torch::nn::Linear(2 * width + 1, width))),
        norm(register_module("norm", torch::nn::LayerNorm(std::vector<int64_t>{width}))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + narrow(torch::tanh(wide(norm(x)))); }
};
TORCH_MODULE(Block);

/// A unit with parameters of its own and a unit inside. `Wrapped` is dovetail::Unit, or what does nothing.
template <template <class> class Wrapped>
struct OuterImpl : torch::nn::Module {
  torch::nn::Linear own = register_module("own", torch::nn::Linear(5, 5));
  Wrapped<Block> inner = register_module("inner", Wrapped<Block>(5));
  torch::Tensor forward(const torch::Tensor& x) { return inner(own(x)); }
};
template <template <class> class Wrapped>
using Outer = torch::nn::ModuleHolder<OuterImpl<Wrapped>>;

}  // namespace support
