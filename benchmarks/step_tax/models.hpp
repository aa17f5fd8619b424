// SPDX-License-Identifier: Apache-2.0
#pragma once

// What both sides of the comparison train, and the loop that a person would write by hand.

#include <torch/torch.h>

#include <cmath>

namespace step_tax {

struct MLP : torch::nn::Module {
  explicit MLP(int layers) {
    for (int i = 0; i < layers; ++i)
      linears.push_back(register_module("l" + std::to_string(i), torch::nn::Linear(8, 8)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& linear : linears) x = torch::tanh(linear(x));
    return x;
  }
  std::vector<torch::nn::Linear> linears;
};

/// AdamW over LibTorch's fused kernel with nothing around it.
class HandWrittenAdamW {
 public:
  explicit HandWrittenAdamW(std::vector<torch::Tensor> parameters) : parameters_(std::move(parameters)) {
    for (const auto& p : parameters_) {
      first_.push_back(torch::zeros_like(p.detach()));
      second_.push_back(torch::zeros_like(p.detach()));
      steps_.push_back(torch::zeros({}));
    }
    gradients_.reserve(parameters_.size());
  }
  std::vector<torch::Tensor>& parameters() { return parameters_; }
  void zero_grad() {
    for (auto& p : parameters_) p.mutable_grad().reset();
  }
  void step() {
    torch::NoGradGuard no_grad;
    gradients_.clear();
    for (const auto& p : parameters_) gradients_.push_back(p.grad());
    at::_foreach_add_(steps_, 1);
    at::_fused_adamw_(parameters_, gradients_, first_, second_, {}, steps_, 1e-3, 0.9, 0.999, 1e-2, 1e-8, false, false);
  }

 private:
  std::vector<torch::Tensor> parameters_, gradients_, first_, second_, steps_;
};

inline torch::Tensor inputs(int64_t samples) {
  torch::manual_seed(7);
  return torch::randn({samples, 8});
}

/// `steps` steps on batches of 4, with clip_grad_norm_ where `clip` is above 0. Returns the last loss.
inline double train_by_hand(int layers, int64_t steps, double clip) {
  const torch::Tensor x = inputs(4 * 64), y = torch::sin(x);
  torch::manual_seed(1);
  MLP net(layers);
  HandWrittenAdamW optimizer(net.parameters());
  double last = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t first = step % 64 * 4;
    torch::Tensor loss = torch::mse_loss(net.forward(x.narrow(0, first, 4)), y.narrow(0, first, 4));
    loss.backward();
    if (clip > 0) torch::nn::utils::clip_grad_norm_(optimizer.parameters(), clip);
    optimizer.step();
    optimizer.zero_grad();
    last = *loss.const_data_ptr<float>();
    if (!std::isfinite(last)) break;
  }
  return last;
}

}  // namespace step_tax
