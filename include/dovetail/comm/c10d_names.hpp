// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace dovetail::detail {

// c10d renames its flat collectives within the range of versions that Dovetail supports (2.11-2.15): the new names are
// taken where they exist. Feature tests, as a distribution may carry a name back.

template <class B>
auto all_gather_flat(B& backend, at::Tensor& out, at::Tensor& in) {
  if constexpr (requires { backend.all_gather_single(out, in); }) {
    return backend.all_gather_single(out, in);
  } else {
    return backend._allgather_base(out, in);
  }
}

/// Equal pieces: piece r of `in` goes to rank r.
template <class B>
auto all_to_all_flat(B& backend, at::Tensor& out, at::Tensor& in) {
  std::vector<int64_t> equal_out, equal_in;  // empty: equal pieces
  if constexpr (requires { backend.all_to_all_single(out, in, equal_out, equal_in); }) {
    return backend.all_to_all_single(out, in, equal_out, equal_in);
  } else {
    return backend.alltoall_base(out, in, equal_out, equal_in);
  }
}

}  // namespace dovetail::detail
