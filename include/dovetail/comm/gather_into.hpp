// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/communicator.hpp>

namespace dovetail {

/// Concatenates the ranks' `in` in rank order into `out` on rank `root`, where it is `size()` times as large; elsewhere
/// `out` is not looked at and may be undefined. Any dtype. Counted with the mean over the ranks of what they send.
/// @throws what the Communicator's own functions throw
inline void gather_into(Communicator& comm, const torch::Tensor& out, const torch::Tensor& in, int root) {
  const torch::NoGradGuard no_grad;
  const int ranks = comm.size();
  const torch::Device device = comm.state_->device;
  detail::check_memory(in, device, "gather_into");
  if (comm.rank() == root) detail::check_pair(out, in, ranks, device, "gather_into");
  if (in.numel() == 0) return;
  if (ranks == 1) return detail::copy_memory(out, in);
  const auto bytes = static_cast<int64_t>(in.nbytes()) * ranks;
  comm.state_->counts->add(Collective::gather, bytes_sent(Collective::gather, bytes, ranks));
  std::vector<torch::Tensor> from{detail::byte_view(in)};
  std::vector<std::vector<torch::Tensor>> to;
  if (comm.rank() == root) to.push_back(detail::byte_view(out).chunk(ranks));
  auto options = detail::options_for<c10d::GatherOptions>(in);
  options.rootRank = root;
  comm.run(in, [&] { comm.finish(Collective::gather, [&] { return comm.backend(in).gather(to, from, options); }); });
}

}  // namespace dovetail
