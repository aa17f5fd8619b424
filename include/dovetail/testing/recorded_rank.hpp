// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/launch/launch.hpp>

#include <utility>

namespace dovetail::testing {

/// While it lives, runs of this process are rank `rank` of `world_size` ranks of which no other is there: every
/// collective does what it would do if all ranks had given the same. For plans, counts of calls and bytes, and memory
/// of worlds that one does not have; the numbers that such a run learns mean nothing.
///
///     dt::testing::RecordedRank rank(7777, 10000);
///     const auto result = dt::Trainer<dt::FSDP, dt::FP32>(options).fit(task, data);
///     result.communication.bytes;   // what rank 7777 would have sent
class RecordedRank {
 public:
  RecordedRank(int rank, int world_size)
      : before_(std::exchange(detail::known_ranks(), Ranks{.rank = rank,
                                                           .world_size = world_size,
                                                           .local_rank = 0,
                                                           .local_world_size = 1,
                                                           .how = {.kind = Rendezvous::Kind::recorded}})) {}
  RecordedRank(const RecordedRank&) = delete;
  RecordedRank& operator=(const RecordedRank&) = delete;
  ~RecordedRank() { detail::known_ranks() = std::move(before_); }

 private:
  Ranks before_;
};

}  // namespace dovetail::testing
