// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/communicator.hpp>

#include <cstring>
#include <span>

namespace dovetail {

/// A few numbers of every rank, by a collective that may be under way while the rank goes on. While their number stays
/// the same the tensors for it are used again.
class NumberGather {
 public:
  void start(Communicator& comm, std::span<const double> mine) {
    pending_.wait();  // of one whose end an exception has left out
    const auto k = int64_t(mine.size());
    if (!mine_.defined() || mine_.numel() != k) {
      const c10::InferenceMode normal(false);
      mine_ = torch::empty({k}, torch::kDouble);
      all_ = torch::empty({k * comm.size()}, torch::kDouble);
    }
    std::memcpy(mine_.mutable_data_ptr(), mine.data(), mine.size_bytes());
    pending_ = comm.all_gather_into_async(all_, mine_);
  }

  /// In rank order: k numbers of each, which stay valid until the next start.
  /// @throws Error(peer_lost) or Error(collective_timeout)
  std::span<const double> finish() {
    pending_.wait();
    return {all_.const_data_ptr<double>(), std::size_t(all_.numel())};
  }

 private:
  torch::Tensor mine_, all_;
  Pending pending_;
};

}  // namespace dovetail
