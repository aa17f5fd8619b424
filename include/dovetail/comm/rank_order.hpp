// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/communicator.hpp>

namespace dovetail {

inline void Communicator::all_reduce_deterministic(const torch::Tensor& tensor) {
  if (!begin(tensor, "all_reduce_deterministic")) return;
  const torch::NoGradGuard no_grad;
  const int64_t ranks = size();
  const int64_t part = (tensor.numel() + ranks - 1) / ranks;  // the last part may be padded
  const torch::Tensor flat = detail::flat_view(tensor);
  const bool padded = part * ranks != tensor.numel();
  run(tensor, [&] {
    detail::Scratch& scratch = this->scratch(tensor);
    auto sent = padded ? scratch.take({part * ranks}, tensor.scalar_type()) : detail::Scratch::Loan{{}, flat};
    if (padded) {
      sent.values.narrow(0, 0, flat.numel()).copy_(flat);
      sent.values.narrow(0, flat.numel(), part * ranks - flat.numel()).zero_();
    }
    auto rows = scratch.take({ranks, part}, tensor.scalar_type());
    count(Collective::all_reduce, sent.values);
    torch::Tensor to = detail::byte_view(rows.values), whole = detail::byte_view(sent.values);
    finish(Collective::all_reduce, [&] { return detail::all_to_all_flat(backend(tensor), to, whole); });

    const torch::Tensor mine = sent.values.narrow(0, rank() * part, part);
    detail::sum_rows(mine, rows.values);
    scratch.give(std::move(rows));
    torch::Tensor from = detail::byte_view(mine);
    finish(Collective::all_reduce, [&] { return detail::all_gather_flat(backend(tensor), whole, from); });
    if (padded) {
      torch::Tensor(flat).copy_(sent.values.narrow(0, 0, flat.numel()));
      scratch.give(std::move(sent));
    }
  });
}

inline Pending Communicator::reduce_scatter_async(const torch::Tensor& out, const torch::Tensor& in, bool adds) {
  const torch::NoGradGuard no_grad;
  detail::check_pair(in, out, size(), state_->device, "reduce_scatter", true);
  const auto dtype = in.scalar_type();
  if (out.scalar_type() != dtype && out.scalar_type() != detail::sum_dtype(dtype)) {
    throw Error(ExitCode::user_code, std::string("reduce_scatter cannot sum ") + c10::toString(dtype) + " into " +
                                         c10::toString(out.scalar_type()) + ".");
  }
  if (size() == 1 || in.numel() == 0) {
    if (adds)
      detail::flat_view(out).add_(detail::flat_view(in));
    else if (out.scalar_type() == dtype)
      detail::copy_memory(out, in);
    else
      detail::flat_view(out).copy_(detail::flat_view(in));
    return {};
  }
  count(Collective::reduce_scatter, in);
  if (!out.is_cpu()) return Pending(state_->side->run([&] { reduce_on_side(out, in, adds); }, out, in));
  auto rows = state_->scratch.take({size(), out.numel()}, dtype);
  torch::Tensor to = detail::byte_view(rows.values), from = detail::byte_view(in);
  auto work =
      state_->guarded(Collective::reduce_scatter, [&] { return detail::all_to_all_flat(backend(out), to, from); });
  return {state_, Collective::reduce_scatter, std::move(work), out, std::move(rows), adds};
}

/// The whole of a reduce-scatter, sum included, with the side stream as the current one. Temporaries may go back at
/// once: who takes them next uses them on the same stream.
inline void Communicator::reduce_on_side(const torch::Tensor& out, const torch::Tensor& in, bool adds) {
  const auto dtype = in.scalar_type();
  const bool theirs = !state_->deterministic && detail::sum_dtype(dtype) == dtype;  // its sums round half formats
  torch::Tensor from = detail::flat_view(in), to = detail::flat_view(out);
  const auto reduce = [&] {
    finish(Collective::reduce_scatter, [&] { return detail::reduce_scatter_flat(backend(out), to, from); });
  };
  if (theirs && !adds && !out.is_alias_of(in)) return reduce();
  auto rows = state_->on_side->take({theirs ? 1 : size(), out.numel()}, dtype);
  to = rows.values.flatten();
  if (theirs) {
    reduce();
  } else {
    to = detail::byte_view(to), from = detail::byte_view(from);
    finish(Collective::reduce_scatter, [&] { return detail::all_to_all_flat(backend(out), to, from); });
  }
  detail::sum_rows(out, rows.values, adds);
  state_->on_side->give(std::move(rows));
}

}  // namespace dovetail
