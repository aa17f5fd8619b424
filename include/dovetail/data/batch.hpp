// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <torch/types.h>

namespace dovetail {

/// Samples and what is to be learned from them; the first dimension of both counts samples. The storage is used again
/// for the next batch: clone what must outlive the step.
struct Batch {
  torch::Tensor data;
  torch::Tensor target;
  /// Trailing rows that only keep a rank without samples busy, so that it takes part in every collective. They weigh
  /// nothing in loss, gradients and metrics.
  int64_t padding = 0;

  /// Rows, padding included.
  [[nodiscard]] int64_t size() const { return data.defined() ? data.size(0) : 0; }

  /// Rows that count.
  [[nodiscard]] int64_t samples() const { return size() - padding; }
};

namespace detail {

/// Gives `tensor` the shape and dtype, on the CPU, keeping its storage where it is large enough. The content is
/// undefined.
inline void shape_as(torch::Tensor& tensor, torch::IntArrayRef shape, torch::ScalarType dtype) {
  const bool fits = tensor.defined() && tensor.scalar_type() == dtype && tensor.device().is_cpu() &&
                    tensor.is_contiguous() && tensor.storage_offset() == 0;
  if (fits && tensor.sizes() == shape) return;
  const auto bytes = static_cast<size_t>(c10::multiply_integers(shape)) * c10::elementSize(dtype);
  if (fits && bytes <= tensor.storage().nbytes()) {
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);  // resize_ would ask the heap for something
  } else {
    tensor = torch::empty(shape, dtype);
  }
}

}  // namespace detail
}  // namespace dovetail
