// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace dovetail::detail {

// c10d renames its flat collectives within the range of versions that Dovetail supports (2.11-2.15): the new names are
// taken where they exist. Feature tests, as a distribution may carry a name back.

/// The options of a collective on this tensor. On a device what is not asynchronous runs on the current stream and
/// holds no tensors: which stream that is, and what outlives it, is the caller's (side_stream.hpp).
template <class Options>
[[nodiscard]] Options options_for(const at::Tensor& tensor) {
  Options options;
  options.asyncOp = tensor.is_cpu();
  return options;
}

template <class B>
auto all_gather_flat(B& backend, at::Tensor& out, at::Tensor& in) {
  const auto options = options_for<c10d::AllgatherOptions>(out);
  if constexpr (requires { backend.all_gather_single(out, in, options); }) {
    return backend.all_gather_single(out, in, options);
  } else {
    return backend._allgather_base(out, in, options);
  }
}

template <class B>
auto reduce_scatter_flat(B& backend, at::Tensor& out, at::Tensor& in) {
  const auto options = options_for<c10d::ReduceScatterOptions>(out);
  if constexpr (requires { backend.reduce_scatter_single(out, in, options); }) {
    return backend.reduce_scatter_single(out, in, options);
  } else {
    return backend._reduce_scatter_base(out, in, options);
  }
}

/// Equal pieces: piece r of `in` goes to rank r.
template <class B>
auto all_to_all_flat(B& backend, at::Tensor& out, at::Tensor& in) {
  std::vector<int64_t> equal_out, equal_in;  // empty: equal pieces
  const auto options = options_for<c10d::AllToAllOptions>(out);
  if constexpr (requires { backend.all_to_all_single(out, in, equal_out, equal_in, options); }) {
    return backend.all_to_all_single(out, in, equal_out, equal_in, options);
  } else {
    return backend.alltoall_base(out, in, equal_out, equal_in, options);
  }
}

}  // namespace dovetail::detail
