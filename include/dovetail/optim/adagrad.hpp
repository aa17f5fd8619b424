// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/_fused_adagrad.h>

#include <dovetail/core/traits.hpp>
#include <dovetail/optim/fused.hpp>
#include <dovetail/optim/update.hpp>
#include <dovetail/optim/update_elsewhere.hpp>

namespace dovetail {

/// Options of Adagrad. The names and defaults are LibTorch's.
struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;      ///< step t, counted from 0, has the learning rate lr / (1 + t * lr_decay)
  double weight_decay = 0;  ///< added to the gradient, as an L2 penalty
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;

  template <class Visit>
  void each(Visit&& visit) const {
    visit("lr", lr);
    visit("lr_decay", lr_decay);
    visit("weight_decay", weight_decay);
    visit("initial_accumulator_value", initial_accumulator_value);
    visit("eps", eps);
    visit("maximize", maximize);
  }
};

/// Adagrad (Duchi, Hazan and Singer, JMLR 2011).
class Adagrad final : public FusedOptimizer {
 public:
  using Options = AdagradOptions;
  explicit Adagrad(const Parameters& parameters, Options options = {}) : Adagrad({{parameters, options}}) {}
  explicit Adagrad(std::vector<ParameterGroup<Options>> groups)
      : FusedOptimizer("Adagrad", detail::held(std::move(groups), check), detail::hold(Options{})) {}

  void check_options(const torch::optim::OptimizerOptions& options) const override { check(value(options)); }

 protected:
  void update(const torch::optim::OptimizerOptions& options, detail::Bucket& bucket, double divisor) const override {
    const Options& with = value(options);
    if (bucket.on_cpu())
      return detail::update_on_cpu(detail::AdagradStep{.scale = (with.maximize ? -1 : 1) / divisor,
                                                       .lr = with.lr,
                                                       .lr_decay = with.lr_decay,
                                                       .weight_decay = with.weight_decay,
                                                       .eps = with.eps,
                                                       .step = bucket.step()},
                                   bucket);
    detail::update_elsewhere(bucket, divisor, [&](const detail::FusedArguments& its) {
      at::_fused_adagrad_(bucket.params, bucket.grads, bucket.states[0], its.counters, with.lr, with.lr_decay,
                          with.weight_decay, with.eps, with.maximize, its.divisor, its.found_inf);
    });
  }

  std::vector<detail::StateSpec> state_specs(const torch::optim::OptimizerOptions& options) const override {
    return {{"sum", value(options).initial_accumulator_value}};
  }

  std::size_t state_count(const torch::optim::OptimizerOptions&) const override { return 1; }

 private:
  static const Options& value(const torch::optim::OptimizerOptions& options) {
    return static_cast<const detail::HeldOptions<Options>&>(options).value;
  }

  static void check(const Options& with) {
    detail::require_option(with.lr >= 0, "Adagrad", "lr must not be negative", with.lr);
    detail::require_option(with.lr_decay >= 0, "Adagrad", "lr_decay must not be negative", with.lr_decay);
    detail::require_option(with.weight_decay >= 0, "Adagrad", "weight_decay must not be negative", with.weight_decay);
    detail::require_option(with.initial_accumulator_value >= 0, "Adagrad",
                           "initial_accumulator_value must not be negative", with.initial_accumulator_value);
    detail::require_option(with.eps >= 0, "Adagrad", "eps must not be negative", with.eps);
  }
};

template <>
inline constexpr OptimizerTraits optimizer_traits<Adagrad>{.elementwise = true};

}  // namespace dovetail
