// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/rank_groups.hpp>
#include <dovetail/core/group_sizes.hpp>

namespace dovetail {

/// The ranks that do things together with units: of the run, and of the groups of which this rank is a member.
class UnitRanks {
 public:
  /// Connects the groups. Called by all ranks.
  /// @throws Error(user_code) for sizes that do not divide each other, Error(collective_timeout, peer_lost)
  UnitRanks(const Communicator& all, const GroupSizes& sizes)
      : all(all),
        shard(shard_group(all, sizes.shard)),
        replicas(replica_group(all, sizes.shard)),
        reshard(shard_group(all, sizes.reshard)) {}

  /// Has this rank a part in making parameters whole? Of the replicas the first is gathered where rank 0 alone asks.
  bool gathers(bool on_every_rank) const { return on_every_rank || all.rank() < shard.size(); }

  Communicator all;       ///< agree on the units that are visited
  Communicator shard;     ///< share one replica of the model, each holding a part
  Communicator replicas;  ///< hold the same part of all replicas
  Communicator reshard;   ///< of the shard group: have a unit in slices between its forward and its backward; one rank:
                          ///< there are no slices
};

}  // namespace dovetail
