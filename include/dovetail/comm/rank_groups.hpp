// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <dovetail/comm/communicator.hpp>

namespace dovetail {
namespace detail {

/// Makes the Communicator of some ranks of another one.
struct RankGroups {
  /// The ranks first, first + stride, ..., `count` of them, this rank among them. All ranks of `comm` must make groups
  /// of the same count and stride in the same order. What is sent within a group is counted with `comm`, and
  /// set_timeout and set_deterministic of `comm` are its own too. A group of one has no connections; a group of all is
  /// `comm` itself.
  /// @throws Error(collective_timeout, peer_lost)
  static Communicator make(const Communicator& comm, int first, int count, int stride) {
    if (count == comm.size()) return comm;
    Communicator made;
    made.state_->device = comm.state_->device;
    if (count == 1) return made;
    CommunicatorState &from = *comm.state_, &state = *made.state_;
    state.rank = (from.rank - first) / stride;
    state.size = count;
    state.timeouts = from.timeouts;
    state.timeout = from.timeout;
    state.counts = from.counts;
    state.deterministic = from.deterministic;
    state.among = " of the run's ranks " + std::to_string(first) + ", " + std::to_string(first + stride);
    if (count > 3) state.among += ", ...";
    if (count > 2) state.among += ", " + std::to_string(first + (count - 1) * stride);
    const std::string name = "ranks_" + std::to_string(from.groups++) + "_" + std::to_string(first);
    try {
      state.attach(connect_part(from.group, name, state.rank, count));
      state.group.set_timeout(state.timeout);
    } catch (const std::exception& cause) {
      throw_collective_error(cause, "connecting", state.rank, count, from.timeouts.setup, state.among);
    }
    from.parts.push_back(made.state_);
    return made;
  }
};

inline void check_group(const Communicator& comm, int k) {
  if (k < 1 || comm.size() % k != 0)
    throw Error(ExitCode::user_code, "groups of " + std::to_string(k) + " ranks cannot be made of " +
                                         std::to_string(comm.size()) + ": the number must divide the ranks.");
}

}  // namespace detail

/// The k ranks that follow each other from a multiple of k on, this rank among them: those that share one replica of a
/// model where each group of k has one. Called by all ranks of `comm`.
/// @throws Error(user_code) unless k divides comm.size(), Error(collective_timeout, peer_lost)
[[nodiscard]] inline Communicator shard_group(const Communicator& comm, int k) {
  detail::check_group(comm, k);
  return detail::RankGroups::make(comm, comm.rank() / k * k, k, 1);
}

/// The ranks that are at the same place of their shard group of k as this one, comm.size() / k of them. Called by all
/// ranks of `comm`.
/// @throws Error(user_code) unless k divides comm.size(), Error(collective_timeout, peer_lost)
[[nodiscard]] inline Communicator replica_group(const Communicator& comm, int k) {
  detail::check_group(comm, k);
  return detail::RankGroups::make(comm, comm.rank() % k, comm.size() / k, k);
}

}  // namespace dovetail
