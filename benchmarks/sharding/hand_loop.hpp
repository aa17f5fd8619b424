// SPDX-License-Identifier: Apache-2.0
#pragma once

// The loop that a person would write by hand for data parallel training.

#include <dovetail/comm/communicator.hpp>
#include <dovetail/optim/adamw.hpp>

#include <torch/torch.h>

#include <memory>
#include <vector>

namespace sharding {

/// Gradients are views of one flat buffer, which is all-reduced after backward; then the fused AdamW.
template <class Model>
class HandLoop {
 public:
  HandLoop(std::shared_ptr<Model> model, dovetail::Communicator comm, double clip)
      : model_(std::move(model)), comm_(std::move(comm)), clip_(clip), parameters_(model_->parameters()) {
    int64_t elements = 0;
    for (const auto& parameter : parameters_) elements += parameter.numel();
    gradients_ = torch::zeros({elements});
    dovetail::Parameters named;
    for (auto& parameter : parameters_) {
      elements -= parameter.numel();
      parameter.mutable_grad() = gradients_.narrow(0, elements, parameter.numel()).view(parameter.sizes());
      named.push_back({"p", parameter.sizes().vec(), parameter});
    }
    optimizer_ = std::make_unique<dovetail::AdamW>(named, dovetail::AdamWOptions{.lr = 1e-3, .weight_decay = 1e-2});
  }

  double step(const torch::Tensor& data, const torch::Tensor& target) {
    const torch::Tensor loss = model_->loss(data, target);
    loss.backward();
    comm_.all_reduce_mean(gradients_);
    if (clip_ > 0) torch::nn::utils::clip_grad_norm_(parameters_, clip_);
    optimizer_->step();
    gradients_.zero_();
    return *loss.template const_data_ptr<float>();
  }

 private:
  std::shared_ptr<Model> model_;
  dovetail::Communicator comm_;
  double clip_;
  std::vector<torch::Tensor> parameters_;
  torch::Tensor gradients_;
  std::unique_ptr<dovetail::AdamW> optimizer_;
};

}  // namespace sharding
