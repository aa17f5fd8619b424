// SPDX-License-Identifier: Apache-2.0
#pragma once

// What both sides of the comparisons train, with a unit around each block or layer, or without.

#include <dovetail/shard/unit.hpp>

#include <torch/torch.h>

namespace sharding {

/// What `Unit` is put in the place of: the module itself.
template <class M>
struct Plain : M {
  using M::M;
};

/// Pre-norm transformer block with causal attention.
struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t heads)
      : heads(heads),
        before_attention(register_module("before_attention", norm(width))),
        before_mlp(register_module("before_mlp", norm(width))),
        queries_keys_values(register_module("queries_keys_values", torch::nn::Linear(width, 3 * width))),
        out(register_module("out", torch::nn::Linear(width, width))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}

  torch::Tensor forward(torch::Tensor x) {
    const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    auto parts = queries_keys_values(before_attention(x)).view({batch, length, 3, heads, width / heads});
    auto mixed =
        at::scaled_dot_product_attention(parts.select(2, 0).transpose(1, 2), parts.select(2, 1).transpose(1, 2),
                                         parts.select(2, 2).transpose(1, 2), {}, 0.0, /*is_causal=*/true);
    x = x + out(mixed.transpose(1, 2).reshape({batch, length, width}));
    return x + down(torch::gelu(up(before_mlp(x))));
  }

  static torch::nn::LayerNorm norm(int64_t width) { return torch::nn::LayerNorm(std::vector<int64_t>{width}); }

  int64_t heads;
  torch::nn::LayerNorm before_attention, before_mlp;
  torch::nn::Linear queries_keys_values, out, up, down;
};
TORCH_MODULE(Block);

struct GPTSize {
  int layers = 4;
  int64_t width = 128, context = 64;
};

/// A byte-level GPT: tokens are bytes, the target is the next one.
template <template <class> class Wrapped>
struct GPT : torch::nn::Module {
  static constexpr int64_t symbols = 256;

  explicit GPT(GPTSize size)
      : bytes(register_module("bytes", torch::nn::Embedding(symbols, size.width))),
        places(register_module("places", torch::nn::Embedding(size.context, size.width))),
        last(register_module("last", BlockImpl::norm(size.width))),
        head(register_module("head", torch::nn::Linear(size.width, symbols))) {
    for (int i = 0; i < size.layers; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), Wrapped<Block>(size.width, 4)));
  }

  torch::Tensor loss(const torch::Tensor& text, const torch::Tensor& next) {
    torch::Tensor x = bytes(text) + places(torch::arange(text.size(1)));
    for (auto& block : blocks) x = block(x);
    return torch::cross_entropy_loss(head(last(x)).view({-1, symbols}), next.view({-1}));
  }

  torch::nn::Embedding bytes, places;
  torch::nn::LayerNorm last;
  torch::nn::Linear head;
  std::vector<Wrapped<Block>> blocks;
};

/// Layers of 8x8: so little to compute that what is done around it shows.
template <template <class> class Wrapped>
struct Layers : torch::nn::Module {
  explicit Layers(int count) {
    for (int i = 0; i < count; ++i)
      layers.push_back(register_module("l" + std::to_string(i), Wrapped<torch::nn::Linear>(8, 8)));
  }
  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& target) {
    torch::Tensor y = x;
    for (auto& layer : layers) y = torch::tanh(layer(y));
    return torch::mse_loss(y, target);
  }
  std::vector<Wrapped<torch::nn::Linear>> layers;
};

}  // namespace sharding
