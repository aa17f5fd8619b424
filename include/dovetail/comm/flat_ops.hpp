// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
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

/// @param device  the one that the ranks are connected for besides the CPU
inline void check_memory(const torch::Tensor& tensor, torch::Device device, const char* collective) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ExitCode::user_code, std::string(collective) + " needs a dense tensor on " +
                                         (device.is_cpu() ? "the CPU" : "the CPU or " + device.str()) +
                                         ", and was given " + what + ".");
  };
  if (!tensor.defined()) refuse("an undefined one");
  if (!tensor.device().is_cpu() && tensor.device() != device) refuse("one on " + tensor.device().str());
  if (tensor.layout() != torch::kStrided) refuse("a sparse one");
  if (!tensor.is_non_overlapping_and_dense()) refuse("one with gaps or overlaps; pass tensor.contiguous()");
}

/// Checks that `large` holds `ranks` times as many elements as `small`, of the same dtype unless `mixed`.
inline void check_pair(const torch::Tensor& large, const torch::Tensor& small, int ranks, torch::Device device,
                       const char* collective, bool mixed = false) {
  check_memory(large, device, collective);
  check_memory(small, device, collective);
  if (large.device() != small.device()) {
    throw Error(ExitCode::user_code, std::string(collective) + " was given tensors on two devices, " +
                                         large.device().str() + " and " + small.device().str() + ".");
  }
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

/// Copies elements in storage order; nothing where it is the same memory. Both have the same dtype and no gaps.
inline void copy_memory(const torch::Tensor& to, const torch::Tensor& from) {
  if (from.numel() == 0 || to.const_data_ptr() == from.const_data_ptr()) return;
  if (from.is_cpu())
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  else
    flat_view(to).copy_(flat_view(from));
}

/// Half formats are summed in fp32, everything else in its own dtype.
[[nodiscard]] inline torch::ScalarType sum_dtype(torch::ScalarType dtype) {
  return dtype == torch::kHalf || dtype == torch::kBFloat16 ? torch::kFloat : dtype;
}

template <class T>
using SumOf = std::conditional_t<std::is_same_v<T, at::Half> || std::is_same_v<T, at::BFloat16>, float, T>;

/// One pass over memory: each block of elements is summed while it is in the cache.
template <class Out, class In, class Sum>
void sum_rows_of(Out* out, const In* rows, int64_t ranks, int64_t row, int64_t begin, int64_t end, bool adds) {
  constexpr int64_t block = 256;
  Sum sums[block];
  for (int64_t at = begin; at < end; at += block) {
    const int64_t n = std::min(block, end - at);
    const In* from = rows + at;
    for (int64_t i = 0; i < n; ++i) sums[i] = static_cast<Sum>(from[i]);
    for (int64_t rank = 1; rank < ranks; ++rank) {
      from += row;
      for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<Sum>(from[i]);
    }
    Out* to = out + at;
    if (adds)
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<Out>(static_cast<Sum>(to[i]) + sums[i]);
    else
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<Out>(sums[i]);
  }
}

/// sum_rows where memory is not the CPU's: a pass over memory for each rank.
inline void sum_rows_elsewhere(const torch::Tensor& out, const torch::Tensor& rows, bool adds) {
  const torch::Tensor to = flat_view(out), first = rows[0];
  const bool in_place = !adds && out.scalar_type() == sum_dtype(rows.scalar_type());
  const torch::Tensor sum = in_place ? to.copy_(first) : first.to(sum_dtype(rows.scalar_type()), false, /*copy=*/true);
  for (int64_t rank = 1; rank < rows.size(0); ++rank) sum.add_(rows[rank]);
  if (in_place) return;
  adds ? to.add_(sum) : to.copy_(sum);
}

/// out = rows[0] + rows[1] + ..., in this order, in sum_dtype of the rows, rounded once to the dtype of `out`, which is
/// the rows' or sum_dtype of it; or this sum added to `out`. `rows` is [ranks, n], `out` has n elements and no gaps.
/// One order on every run and every rank, hence the same bits.
inline void sum_rows(const torch::Tensor& out, const torch::Tensor& rows, bool adds = false) {
  if (!out.is_cpu()) return sum_rows_elsewhere(out, rows, adds);
  const int64_t ranks = rows.size(0), n = rows.size(1);
  const bool widens = out.scalar_type() != rows.scalar_type();
  constexpr int64_t worth_a_thread = 1 << 16;
  const auto sum = [&]<class In>(In) {
    using Sum = SumOf<In>;
    const In* from = rows.const_data_ptr<In>();
    at::parallel_for(0, n, worth_a_thread, [&](int64_t begin, int64_t end) {
      if (widens)
        sum_rows_of<Sum, In, Sum>(static_cast<Sum*>(out.mutable_data_ptr()), from, ranks, n, begin, end, adds);
      else
        sum_rows_of<In, In, Sum>(static_cast<In*>(out.mutable_data_ptr()), from, ranks, n, begin, end, adds);
    });
  };
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND2(torch::kHalf, torch::kBFloat16, rows.scalar_type(), "sum over ranks",
                                         [&] { sum(scalar_t{}); });
}

/// Temporaries that are used again. As many are kept as were ever in use at once, each as large as the largest request
/// that it served.
class Scratch {
 public:
  struct Loan {
    torch::Tensor bytes;   ///< what is kept
    torch::Tensor values;  ///< the shape and dtype asked for, on the same memory
  };

  explicit Scratch(torch::Device device = torch::kCPU) : device_(device) {}

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
      buffer = torch::empty({bytes}, torch::dtype(torch::kByte).device(device_));
    }
    return {buffer, buffer.narrow(0, 0, bytes).view(dtype).view(shape)};
  }

  void give(Loan loan) { free_.push_back(std::move(loan.bytes)); }

 private:
  torch::Device device_;
  std::vector<torch::Tensor> free_;
};

}  // namespace dovetail::detail
