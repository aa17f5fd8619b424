// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/optim/fused.hpp>

#include <array>

namespace dovetail::detail {

/// What Adam and AdamW share: two moments, with amsgrad a third tensor, a step count, and the kernels' list of
/// arguments.
template <class Options>
class AdamFamily : public FusedOptimizer {
 protected:
  AdamFamily(std::string_view name, std::vector<ParameterGroup<Options>> groups)
      : FusedOptimizer(name, held(checked(name, std::move(groups))),
                       std::make_unique<HeldOptions<Options>>(Options{})) {}

  template <class Kernel>
  static void call_kernel(Kernel&& kernel, const torch::optim::OptimizerOptions& options, Bucket& bucket,
                          const std::optional<torch::Tensor>& divisor) {
    const Options& with = value(options);
    const at::TensorList largest = with.amsgrad ? at::TensorList(bucket.states[2]) : at::TensorList();
    kernel(at::TensorList(bucket.params), at::TensorList(bucket.grads), at::TensorList(bucket.states[0]),
           at::TensorList(bucket.states[1]), largest, at::TensorList(bucket.counters), with.lr, with.betas[0],
           with.betas[1], with.weight_decay, with.eps, with.amsgrad, with.maximize, divisor, no_tensor());
  }

  std::vector<StateSpec> state_specs(const torch::optim::OptimizerOptions& options) const override {
    std::vector<StateSpec> specs{{"exp_avg"}, {"exp_avg_sq"}};
    if (value(options).amsgrad) specs.push_back({"max_exp_avg_sq"});
    return specs;
  }

  std::size_t state_count(const torch::optim::OptimizerOptions& options) const override {
    return value(options).amsgrad ? 3 : 2;
  }

 private:
  static const Options& value(const torch::optim::OptimizerOptions& options) {
    return static_cast<const HeldOptions<Options>&>(options).value;
  }

  static std::vector<ParameterGroup<Options>> checked(std::string_view name,
                                                      std::vector<ParameterGroup<Options>> groups) {
    for (const auto& group : groups) {
      require_option(group.options.lr >= 0, name, "lr must not be negative", group.options.lr);
      require_option(group.options.eps >= 0, name, "eps must not be negative", group.options.eps);
      require_option(group.options.weight_decay >= 0, name, "weight_decay must not be negative",
                     group.options.weight_decay);
      for (double beta : group.options.betas)
        require_option(beta >= 0 && beta < 1, name, "each of betas must be at least 0 and below 1", beta);
    }
    return groups;
  }
};

}  // namespace dovetail::detail
