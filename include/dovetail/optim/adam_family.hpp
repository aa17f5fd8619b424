// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/optim/fused.hpp>
#include <dovetail/optim/update.hpp>
#include <dovetail/optim/update_elsewhere.hpp>

#include <array>

namespace dovetail::detail {

/// What Adam and AdamW share: two moments, with amsgrad a third tensor, a step count, and all of the update but what
/// the weight decay acts on.
template <class Options>
class AdamFamily : public FusedOptimizer {
 public:
  void check_options(const torch::optim::OptimizerOptions& options) const override { check(name(), value(options)); }

 protected:
  AdamFamily(std::string_view name, std::vector<ParameterGroup<Options>> groups)
      : FusedOptimizer(name, held(std::move(groups), [name](const Options& with) { check(name, with); }),
                       hold(Options{})) {}

  /// @param decoupled  the weight decay shrinks the parameter, instead of being added to the gradient
  /// @param kernel     LibTorch's, for other devices than the CPU
  template <class Kernel>
  static void update_by(bool decoupled, Kernel&& kernel, const torch::optim::OptimizerOptions& options, Bucket& bucket,
                        double divisor) {
    const Options& with = value(options);
    if (bucket.on_cpu())
      return update_on_cpu(AdamStep{.scale = (with.maximize ? -1 : 1) / divisor,
                                    .lr = with.lr,
                                    .beta1 = with.betas[0],
                                    .beta2 = with.betas[1],
                                    .eps = with.eps,
                                    .weight_decay = with.weight_decay,
                                    .decoupled = decoupled,
                                    .amsgrad = with.amsgrad,
                                    .step = bucket.step()},
                           bucket);
    const at::TensorList largest = with.amsgrad ? at::TensorList(bucket.states[2]) : at::TensorList();
    update_elsewhere(bucket, divisor, [&](const FusedArguments& its) {
      kernel(at::TensorList(bucket.params), at::TensorList(bucket.grads), at::TensorList(bucket.states[0]),
             at::TensorList(bucket.states[1]), largest, at::TensorList(its.counters), with.lr, with.betas[0],
             with.betas[1], with.weight_decay, with.eps, with.amsgrad, with.maximize, its.divisor, its.found_inf);
    });
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

  static void check(std::string_view name, const Options& with) {
    require_option(with.lr >= 0, name, "lr must not be negative", with.lr);
    require_option(with.eps >= 0, name, "eps must not be negative", with.eps);
    require_option(with.weight_decay >= 0, name, "weight_decay must not be negative", with.weight_decay);
    for (double beta : with.betas)
      require_option(beta >= 0 && beta < 1, name, "each of betas must be at least 0 and below 1", beta);
  }
};

}  // namespace dovetail::detail
