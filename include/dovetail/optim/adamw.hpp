// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/_fused_adamw.h>

#include <dovetail/core/traits.hpp>
#include <dovetail/optim/adam_family.hpp>

namespace dovetail {

/// Options of AdamW. The names and defaults are LibTorch's.
struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;  ///< decoupled: the parameter shrinks by lr * weight_decay before the update
  bool amsgrad = false;
  bool maximize = false;

  template <class Visit>
  void each(Visit&& visit) const {
    visit("lr", lr);
    visit("beta1", betas[0]);
    visit("beta2", betas[1]);
    visit("eps", eps);
    visit("weight_decay", weight_decay);
    visit("amsgrad", amsgrad);
    visit("maximize", maximize);
  }
};

/// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019).
///
///     dt::AdamW(p, {.lr = 1e-3, .weight_decay = 1e-2})
///     dt::AdamW({{p.where(decays), {.weight_decay = 0.1}}, {p.where_not(decays), {.weight_decay = 0}}})
class AdamW final : public detail::AdamFamily<AdamWOptions> {
 public:
  using Options = AdamWOptions;
  explicit AdamW(const Parameters& parameters, Options options = {}) : AdamW({{parameters, options}}) {}
  explicit AdamW(std::vector<ParameterGroup<Options>> groups) : AdamFamily("AdamW", std::move(groups)) {}

 protected:
  void update(const torch::optim::OptimizerOptions& options, detail::Bucket& bucket, double divisor) const override {
    update_by(
        true, [](auto&&... arguments) { at::_fused_adamw_(arguments...); }, options, bucket, divisor);
  }
};

template <>
inline constexpr OptimizerTraits optimizer_traits<AdamW>{.elementwise = true};

}  // namespace dovetail
