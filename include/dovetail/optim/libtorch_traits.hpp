// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim.h>

#include <dovetail/core/traits.hpp>

/// What LibTorch's own optimizers are.

namespace dovetail {

template <>
inline constexpr OptimizerTraits optimizer_traits<torch::optim::SGD>{.elementwise = true};
template <>
inline constexpr OptimizerTraits optimizer_traits<torch::optim::Adam>{.elementwise = true};
template <>
inline constexpr OptimizerTraits optimizer_traits<torch::optim::AdamW>{.elementwise = true};
template <>
inline constexpr OptimizerTraits optimizer_traits<torch::optim::Adagrad>{.elementwise = true};
template <>
inline constexpr OptimizerTraits optimizer_traits<torch::optim::RMSprop>{.elementwise = true};
template <>
inline constexpr OptimizerTraits optimizer_traits<torch::optim::LBFGS>{.requires_closure = true};

}  // namespace dovetail
