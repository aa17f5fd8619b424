// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/flat_home.hpp>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace dovetail {

/// Takes gradients away from autograd as they come: each leaf's is handed over and the leaf left without one. Autograd
/// then never adds into a tensor that was set to zero before, which is two passes over memory instead of one.
class GradientHooks {
 public:
  using Take = std::function<void(const torch::Tensor& gradient)>;

  GradientHooks() = default;
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;
  ~GradientHooks() { clear(); }

  void add(const torch::Tensor& leaf, Take take) {
    leaf.mutable_grad().reset();
    // Not by make_unique: a smart pointer to a type of our own costs every unit that includes this.
    torch::autograd::impl::set_post_acc_grad_hooks(
        leaf, std::unique_ptr<torch::autograd::PostAccumulateGradHook>(new Hook(std::move(take))));
    leaves_.push_back(leaf);
  }

  void clear() {
    for (const torch::Tensor& leaf : leaves_) torch::autograd::impl::set_post_acc_grad_hooks(leaf, nullptr);
    leaves_.clear();
  }

 private:
  class Hook final : public torch::autograd::PostAccumulateGradHook {
   public:
    explicit Hook(Take take) : take_(std::move(take)) {}
    void operator()(const torch::autograd::Variable& leaf) override {
      const torch::NoGradGuard no_grad;
      torch::Tensor gradient = std::exchange(leaf.mutable_grad(), torch::Tensor());
      if (!gradient.defined()) return;  // a unit that recomputes may have none for a leaf
      make_dense(gradient);
      take_(gradient);
    }

   private:
    Take take_;
  };

  std::vector<torch::Tensor> leaves_;
};

}  // namespace dovetail
