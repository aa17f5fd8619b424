// SPDX-License-Identifier: Apache-2.0
// The models and their data. Each model is written once, with its layers as plain modules (for references) or as units
// of sharding (for the trainer).
#pragma once

#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

#include "parity/setting.hpp"

namespace parity {

using torch::Tensor;

struct Net : torch::nn::Module {
  virtual Tensor forward(const Tensor& x) = 0;
  std::vector<Tensor> masks;  // which outputs of dropout are zero, for each forward in training

  /// Mean loss over the rows, computed in fp32 at least.
  Tensor loss(const Tensor& x, const Tensor& y) {
    Tensor out = forward(x);
    if (out.scalar_type() != torch::kFloat64) out = out.to(torch::kFloat32);
    if (!y.is_floating_point()) return torch::cross_entropy_loss(out, y);
    return torch::mse_loss(out, y.to(out.scalar_type()));
  }
};

template <template <class> class Layer>
struct Mlp final : Net {
  Layer<torch::nn::Linear> in{nullptr}, out{nullptr};
  Mlp(int64_t inputs, int64_t width, int64_t outputs, bool freeze = false) {
    in = register_module("in", Layer<torch::nn::Linear>(inputs, width));
    out = register_module("out", Layer<torch::nn::Linear>(width, outputs));
    if (freeze)
      for (Tensor& parameter : in->parameters()) parameter.requires_grad_(false);
  }
  Tensor forward(const Tensor& x) override { return out(torch::tanh(in(x))); }
};

/// Parameters of 7, 5, 3 and 1 elements: nothing is a multiple of anything.
template <template <class> class Layer>
struct Odd final : Net {
  Layer<torch::nn::Linear> seven{nullptr}, five{nullptr}, five_more{nullptr}, three{nullptr};
  Odd() {
    using torch::nn::LinearOptions;
    seven = register_module("seven", Layer<torch::nn::Linear>(7, 1));
    five = register_module("five", Layer<torch::nn::Linear>(1, 5));
    five_more = register_module("five_more", Layer<torch::nn::Linear>(LinearOptions(5, 1).bias(false)));
    three = register_module("three", Layer<torch::nn::Linear>(1, 3));
  }
  Tensor forward(const Tensor& x) override {
    return three(torch::tanh(five_more(torch::tanh(five(torch::tanh(seven(x)))))));
  }
};

/// One table is used to look up tokens and to score them.
template <template <class> class Layer>
struct Tied final : Net {
  Tensor table;
  Layer<torch::nn::Linear> middle{nullptr};
  Tied() {
    table = register_parameter("table", torch::randn({11, 6}) * 0.5);
    middle = register_module("middle", Layer<torch::nn::Linear>(6, 6));
  }
  Tensor forward(const Tensor& tokens) override {
    return torch::linear(torch::tanh(middle(torch::embedding(table, tokens).mean(1))), table);
  }
};

template <template <class> class Layer>
struct Normed final : Net {
  Layer<torch::nn::Linear> in{nullptr}, out{nullptr};
  Layer<torch::nn::BatchNorm1d> norm{nullptr};
  Normed() {
    in = register_module("in", Layer<torch::nn::Linear>(6, 8));
    norm = register_module("norm", Layer<torch::nn::BatchNorm1d>(8));
    out = register_module("out", Layer<torch::nn::Linear>(8, 4));
  }
  Tensor forward(const Tensor& x) override { return out(torch::tanh(norm(in(x)))); }
};

template <template <class> class Layer>
struct Dropped final : Net {
  Layer<torch::nn::Linear> in{nullptr}, out{nullptr};
  Dropped() {
    in = register_module("in", Layer<torch::nn::Linear>(6, 16));
    out = register_module("out", Layer<torch::nn::Linear>(16, 4));
  }
  Tensor forward(const Tensor& x) override {
    const Tensor kept = torch::dropout(torch::sigmoid(in(x)), 0.5, is_training());
    masks.push_back(kept.detach().eq(0));
    return out(kept);
  }
};

/// The same weights for the same state of torch's generator, whatever Layer is.
template <template <class> class Layer>
std::shared_ptr<Net> make_net(ModelKind kind) {
  switch (kind) {
    case ModelKind::mlp:
      return std::make_shared<Mlp<Layer>>(6, 8, 4);
    case ModelKind::frozen:
      return std::make_shared<Mlp<Layer>>(6, 8, 4, true);
    case ModelKind::wide:
      return std::make_shared<Mlp<Layer>>(280, 240, 3);
    case ModelKind::odd:
      return std::make_shared<Odd<Layer>>();
    case ModelKind::tied:
      return std::make_shared<Tied<Layer>>();
    case ModelKind::batch_norm:
      return std::make_shared<Normed<Layer>>();
    case ModelKind::dropout:
      break;
  }
  return std::make_shared<Dropped<Layer>>();
}

/// Samples and targets: the same for the same number.
inline std::pair<Tensor, Tensor> make_data(ModelKind kind, int64_t samples) {
  auto generator = at::detail::createCPUGenerator(uint64_t(1000 + int(kind)));
  if (kind == ModelKind::tied)
    return {torch::randint(0, 11, {samples, 3}, generator, torch::kLong),
            torch::randint(0, 11, {samples}, generator, torch::kLong)};
  const int64_t inputs = kind == ModelKind::odd ? 7 : kind == ModelKind::wide ? 280 : 6;
  const int64_t outputs = kind == ModelKind::odd || kind == ModelKind::wide ? 3 : 4;
  const Tensor x = torch::randn({samples, inputs}, generator, torch::kFloat32);
  return {x, torch::randn({samples, outputs}, generator, torch::kFloat32)};
}

}  // namespace parity
