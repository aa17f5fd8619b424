// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/_fused_sgd.h>

#include <dovetail/core/traits.hpp>
#include <dovetail/optim/fused.hpp>
#include <dovetail/optim/update.hpp>
#include <dovetail/optim/update_elsewhere.hpp>

namespace dovetail {

/// Options of SGD. The names are LibTorch's; lr has PyTorch's default.
struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;     ///< of the gradient's part in the momentum, from the second step on
  double weight_decay = 0;  ///< added to the gradient, as an L2 penalty
  bool nesterov = false;    ///< needs momentum, and no dampening
  bool maximize = false;

  template <class Visit>
  void each(Visit&& visit) const {
    visit("lr", lr);
    visit("momentum", momentum);
    visit("dampening", dampening);
    visit("weight_decay", weight_decay);
    visit("nesterov", nesterov);
    visit("maximize", maximize);
  }
};

/// Stochastic gradient descent with momentum. A parameter's momentum starts as its first
/// gradient, as in LibTorch, also for a parameter that gets its first gradient later than others.
class SGD final : public FusedOptimizer {
 public:
  using Options = SGDOptions;
  explicit SGD(const Parameters& parameters, Options options = {}) : SGD({{parameters, options}}) {}
  explicit SGD(std::vector<ParameterGroup<Options>> groups)
      : FusedOptimizer("SGD", detail::held(std::move(groups), check), detail::hold(Options{})) {}

  void check_options(const torch::optim::OptimizerOptions& options) const override { check(value(options)); }

 protected:
  void update(const torch::optim::OptimizerOptions& options, detail::Bucket& bucket, double divisor) const override {
    const Options& with = value(options);
    if (bucket.on_cpu())
      return detail::update_on_cpu(detail::SGDStep{.scale = (with.maximize ? -1 : 1) / divisor,
                                                   .lr = with.lr,
                                                   .momentum = with.momentum,
                                                   .dampening = with.dampening,
                                                   .weight_decay = with.weight_decay,
                                                   .nesterov = with.nesterov,
                                                   .first = bucket.fresh},
                                   bucket);
    const at::TensorList momenta = with.momentum != 0 ? at::TensorList(bucket.states[0]) : at::TensorList();
    detail::update_elsewhere(bucket, divisor, [&](const detail::FusedArguments& its) {
      at::_fused_sgd_(bucket.params, bucket.grads, momenta, with.weight_decay, with.momentum, with.lr, with.dampening,
                      with.nesterov, with.maximize, bucket.fresh, its.divisor, its.found_inf);
    });
  }

  std::vector<detail::StateSpec> state_specs(const torch::optim::OptimizerOptions& options) const override {
    if (value(options).momentum == 0) return {};
    return {{"momentum_buffer"}};
  }

  std::size_t state_count(const torch::optim::OptimizerOptions& options) const override {
    return value(options).momentum != 0;
  }

  bool counts_steps() const override { return false; }
  bool starts_apart() const override { return true; }

 private:
  static const Options& value(const torch::optim::OptimizerOptions& options) {
    return static_cast<const detail::HeldOptions<Options>&>(options).value;
  }

  static void check(const Options& with) {
    detail::require_option(with.lr >= 0, "SGD", "lr must not be negative", with.lr);
    detail::require_option(with.momentum >= 0, "SGD", "momentum must not be negative", with.momentum);
    detail::require_option(with.weight_decay >= 0, "SGD", "weight_decay must not be negative", with.weight_decay);
    detail::require_option(!with.nesterov || with.momentum > 0, "SGD", "nesterov needs momentum above 0",
                           with.momentum);
    detail::require_option(!with.nesterov || with.dampening == 0, "SGD", "nesterov needs dampening 0", with.dampening);
  }
};

template <>
inline constexpr OptimizerTraits optimizer_traits<SGD>{.elementwise = true};

}  // namespace dovetail
