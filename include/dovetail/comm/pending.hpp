// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <dovetail/comm/collective_error.hpp>
#include <dovetail/comm/flat_ops.hpp>
#include <dovetail/comm/process_group.hpp>

namespace dovetail {
namespace detail {

struct RankGroups;  // comm/rank_groups.hpp

/// What all copies of one Communicator share.
struct CommunicatorState {
  int rank = 0;
  int size = 1;
  std::string among = {};  ///< which ranks of the run they are, where not all of them
  int groups = 0;          ///< made of these ranks so far
  Timeouts timeouts = {};
  std::chrono::milliseconds timeout = {};  ///< of the collectives from now on
  ConnectedGroup group = {};
  std::shared_ptr<CommunicationCounts> counts = std::make_shared<CommunicationCounts>();
  Scratch scratch = {};
  torch::Tensor few_mine = {}, few_all = {};  ///< of all_gather of a few numbers, kept while their number stays

  /// Runs one step of a collective, with c10d's exceptions turned into ours.
  template <class F>
  decltype(auto) guarded(Collective collective, F&& step) {
    try {
      return step();
    } catch (const std::exception& cause) {
      throw_collective_error(cause, name_of(collective), rank, size, timeout, among);
    }
  }
};

}  // namespace detail

/// A collective under way. Its tensors must not be touched until `wait` returns; the result is there after that.
/// Dropping it without `wait` is safe for memory and leaves the result undefined. A default one has nothing to wait
/// for.
class Pending {
 public:
  Pending() = default;
  Pending(Pending&&) = default;
  Pending& operator=(Pending&&) = default;

  /// @throws Error(peer_lost) or Error(collective_timeout)
  void wait() {
    if (!work_) return;
    const auto state = std::move(state_);
    const auto work = std::exchange(work_, nullptr);
    state->guarded(collective_, [&] { return work->wait(); });
    if (rows_.values.defined()) {
      detail::sum_rows(out_, rows_.values, adds_);
      state->scratch.give(std::exchange(rows_, {}));
    }
    out_ = torch::Tensor();
  }

  [[nodiscard]] bool waiting() const { return static_cast<bool>(work_); }

 private:
  friend class Communicator;
  using State = std::shared_ptr<detail::CommunicatorState>;

  Pending(State state, Collective collective, c10::intrusive_ptr<c10d::Work> work, torch::Tensor out = {},
          detail::Scratch::Loan rows = {}, bool adds = false)
      : state_(std::move(state)),
        collective_(collective),
        work_(std::move(work)),
        out_(std::move(out)),
        rows_(std::move(rows)),
        adds_(adds) {}

  State state_;
  Collective collective_ = Collective::barrier;
  c10::intrusive_ptr<c10d::Work> work_;
  torch::Tensor out_;           // of a reduce-scatter: where the sum goes
  detail::Scratch::Loan rows_;  // of a reduce-scatter: what the ranks sent
  bool adds_ = false;           // of a reduce-scatter: to what is in out_
};

}  // namespace dovetail
