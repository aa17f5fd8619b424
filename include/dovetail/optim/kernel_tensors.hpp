// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <c10/util/FunctionRef.h>
#include <torch/types.h>

#include <dovetail/optim/kernel_formats.hpp>

#include <cstddef>
#include <cstdint>

/// Between LibTorch and the kernels: formats, addresses, threads.

namespace dovetail::detail {

/// The kernels' name of a floating dtype.
inline Format format_of(torch::ScalarType dtype) {
  return dtype == torch::kFloat32    ? Format::fp32
         : dtype == torch::kFloat64  ? Format::fp64
         : dtype == torch::kBFloat16 ? Format::bf16
                                     : Format::fp16;
}

inline std::byte* bytes_of(const torch::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.unsafeGetTensorImpl()->mutable_data());
}
inline const std::byte* const_bytes_of(const torch::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.unsafeGetTensorImpl()->data());
}

/// Calls work(first, last) for stretches that make up [0, count), shared out among LibTorch's threads. `work` is called
/// at once for everything where there is one thread or one piece only.
///
/// at::parallel_for uses threads only in what is compiled with OpenMP, as LibTorch is and its users rarely are; a
/// TensorIterator's loop is called from LibTorch's own code.
inline void share_out(int64_t count, c10::function_ref<void(int64_t, int64_t)> work) {
  if (count <= 1 || at::get_num_threads() == 1 || at::in_parallel_region()) return work(0, count);
  const at::Tensor pieces = at::empty({count}, at::kByte);
  auto iterator = at::TensorIteratorConfig()
                      .add_borrowed_output(pieces)
                      .resize_outputs(false)
                      .declare_static_shape(pieces.sizes())
                      .check_all_same_dtype(false)
                      .build();
  const auto* begin = static_cast<const char*>(pieces.const_data_ptr());
  iterator.for_each(
      [&](char** data, const int64_t* strides, int64_t columns, int64_t rows) {
        for (int64_t row = 0; row < rows; ++row) {
          const int64_t first = data[0] - begin + row * strides[1];
          work(first, first + columns);
        }
      },
      1);
}

}  // namespace dovetail::detail
