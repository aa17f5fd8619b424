// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include <dovetail/launch/error.hpp>

namespace dovetail::detail {

/// The elements of a tensor in storage order, as one dimension and without autograd. Collectives work on memory:
/// strides do not matter, as long as they leave no gap and are the same on all ranks.
[[nodiscard]] inline torch::Tensor flat_view(const torch::Tensor& tensor) {
  const torch::Tensor plain = tensor.detach();
  if (plain.dim() == 1 && plain.is_contiguous()) return plain;
  if (plain.is_contiguous()) return plain.view({-1});
  return plain.as_strided({plain.numel()}, {1});
}

/// The same as bytes: moving needs no arithmetic, so any dtype can be moved.
[[nodiscard]] inline torch::Tensor byte_view(const torch::Tensor& tensor) {
  const torch::Tensor flat = flat_view(tensor);
  return flat.scalar_type() == torch::kByte ? flat : flat.view(torch::kByte);
}

inline void check_memory(const torch::Tensor& tensor, const char* collective) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ExitCode::user_code,
                std::string(collective) + " needs a dense CPU tensor, and was given " + what + ".");
  };
  if (!tensor.defined()) refuse("an undefined one");
  if (!tensor.device().is_cpu()) refuse("one on " + tensor.device().str());
  if (tensor.layout() != torch::kStrided) refuse("a sparse one");
  if (!tensor.is_non_overlapping_and_dense()) refuse("one with gaps or overlaps; pass tensor.contiguous()");
}

/// Checks that `large` holds `ranks` times as many elements as `small`, of the same dtype unless `mixed`.
inline void check_pair(const torch::Tensor& large, const torch::Tensor& small, int ranks, const char* collective,
                       bool mixed = false) {
  check_memory(large, collective);
  check_memory(small, collective);
  if (large.numel() != ranks * small.numel()) {
    throw Error(ExitCode::user_code, std::string(collective) + " over " + std::to_string(ranks) + " ranks was given " +
                                         std::to_string(large.numel()) + " and " + std::to_string(small.numel()) +
                                         " elements; the larger must be " + std::to_string(ranks) +
                                         " times the smaller.");
  }
  if (!mixed && large.scalar_type() != small.scalar_type()) {
    throw Error(ExitCode::user_code, std::string(collective) + " was given two dtypes, " +
                                         c10::toString(large.scalar_type()) + " and " +
                                         c10::toString(small.scalar_type()) + ".");
  }
}

/// Half formats are summed in fp32, everything else in its own dtype.
[[nodiscard]] inline torch::ScalarType sum_dtype(torch::ScalarType dtype) {
  return dtype == torch::kHalf || dtype == torch::kBFloat16 ? torch::kFloat : dtype;
}

/// out = rows[0] + rows[1] + ..., in this order, in the dtype of `out`, which is sum_dtype of the rows' or wider.
/// `rows` is [ranks, n], `out` has n elements and no gaps. One order on every run and every rank, hence the same bits.
inline void sum_rows(torch::Tensor out, const torch::Tensor& rows) {
  out = flat_view(out);
  if (rows.size(0) > 1 && rows.scalar_type() == out.scalar_type()) {
    torch::add_out(out, rows[0], rows[1]);
    for (int64_t row = 2; row < rows.size(0); ++row) out.add_(rows[row]);
    return;
  }
  out.copy_(rows[0]);
  for (int64_t row = 1; row < rows.size(0); ++row) out.add_(rows[row]);
}

/// Temporaries that are used again. As many are kept as were ever in use at once, each as large as the largest request
/// that it served.
class Scratch {
 public:
  struct Loan {
    torch::Tensor bytes;   ///< what is kept
    torch::Tensor values;  ///< the shape and dtype asked for, on the same memory
  };

  /// The content is undefined. Give the loan back when nothing reads or writes it any more.
  [[nodiscard]] Loan take(torch::IntArrayRef shape, torch::ScalarType dtype) {
    const int64_t bytes = c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(dtype));
    torch::Tensor buffer;
    if (!free_.empty()) {  // the largest one: small requests must not leave a large one behind
      const auto largest = std::max_element(free_.begin(), free_.end(),
                                            [](const auto& a, const auto& b) { return a.numel() < b.numel(); });
      buffer = std::move(*largest);
      free_.erase(largest);
    }
    if (!buffer.defined() || buffer.numel() < bytes) {
      buffer = torch::Tensor();                // free the smaller one first
      const c10::InferenceMode normal(false);  // or the buffer could not be written outside of inference mode
      buffer = torch::empty({bytes}, torch::kByte);
    }
    return {buffer, buffer.narrow(0, 0, bytes).view(dtype).view(shape)};
  }

  void give(Loan loan) { free_.push_back(std::move(loan.bytes)); }

 private:
  std::vector<torch::Tensor> free_;
};

}  // namespace dovetail::detail
