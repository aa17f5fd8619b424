// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/_fused_adam.h>

#include <dovetail/core/traits.hpp>
#include <dovetail/optim/adam_family.hpp>

namespace dovetail {

/// Options of Adam. The names and defaults are LibTorch's.
struct AdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;  ///< added to the gradient, as an L2 penalty
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

/// Adam (Kingma and Ba, ICLR 2015; amsgrad: Reddi et al., ICLR 2018). Written as AdamW is.
class Adam final : public detail::AdamFamily<AdamOptions> {
 public:
  using Options = AdamOptions;
  explicit Adam(const Parameters& parameters, Options options = {}) : Adam({{parameters, options}}) {}
  explicit Adam(std::vector<ParameterGroup<Options>> groups) : AdamFamily("Adam", std::move(groups)) {}

 protected:
  void update(const torch::optim::OptimizerOptions& options, detail::Bucket& bucket, double divisor) const override {
    update_by(
        false, [](auto&&... arguments) { at::_fused_adam_(arguments...); }, options, bucket, divisor);
  }
};

template <>
inline constexpr OptimizerTraits optimizer_traits<Adam>{.elementwise = true};

}  // namespace dovetail
