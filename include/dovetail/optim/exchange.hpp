// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/adagrad.h>

#include <memory>

namespace dovetail {

/// Puts `with` in the place of `held`, an entry of one of the optimizer's groups, before the first step: a rank's
/// piece, or a master. State that was made for `held` in the constructor is made anew for `with`; of LibTorch's
/// optimizers Adagrad does that, and its step insists on it.
inline void exchange(torch::optim::Optimizer& optimizer, torch::Tensor& held, const torch::Tensor& with) {
  if (optimizer.state().erase(held.unsafeGetTensorImpl()) > 0 && dynamic_cast<torch::optim::Adagrad*>(&optimizer)) {
    const auto& options = static_cast<torch::optim::AdagradOptions&>(optimizer.defaults());
    auto state = std::make_unique<torch::optim::AdagradParamState>();
    state->step(0);
    state->sum(torch::full_like(with.detach(), options.initial_accumulator_value()));
    optimizer.state()[with.unsafeGetTensorImpl()] = std::move(state);
  }
  held = with;
}

}  // namespace dovetail
