// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/traits.hpp>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/module.h>
#include <torch/types.h>

namespace dovetail {

/// A Format as torch names it.
inline torch::ScalarType dtype_of(Format format) {
  switch (format) {
    case Format::fp16:
      return torch::kHalf;
    case Format::bf16:
      return torch::kBFloat16;
    case Format::fp64:
      return torch::kFloat64;
    case Format::fp32:
      break;
  }
  return torch::kFloat32;
}

/// Does the module normalise by batch statistics?
inline bool is_batch_norm(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module) ||
         dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module) ||
         dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module);
}

/// Casts floating parameters and buffers of a model in place. Parameters keep their identity, so this comes before
/// anybody takes a hook on their gradients. `spare_batch_norm` leaves batch norms as they are (Apex's
/// keep_batchnorm_fp32). A buffer in fp64 stays: whoever made it so wants its digits.
inline void convert_model(torch::nn::Module& model, torch::ScalarType dtype, bool spare_batch_norm) {
  torch::NoGradGuard no_grad;
  const auto cast = [dtype](torch::Tensor tensor) {
    if (tensor.defined() && tensor.is_floating_point()) tensor.set_data(tensor.detach().to(dtype));
  };
  for (const auto& module : model.modules()) {
    if (spare_batch_norm && is_batch_norm(*module)) continue;
    for (auto& parameter : module->named_parameters(/*recurse=*/false)) cast(parameter.value());
    for (auto& buffer : module->named_buffers(/*recurse=*/false))
      if (buffer.value().defined() && buffer.value().scalar_type() != torch::kFloat64) cast(buffer.value());
  }
}

}  // namespace dovetail
