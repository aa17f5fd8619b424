// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <dovetail/comm/collective_error.hpp>
#include <dovetail/comm/flat_ops.hpp>
#include <dovetail/comm/process_group.hpp>
#include <dovetail/comm/side_stream.hpp>

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
  Scratch scratch{};
  torch::Device device = torch::kCPU;  ///< that the ranks are connected for besides the CPU
  std::optional<SideStream> side{};    ///< of that device, where its collectives run
  std::optional<Scratch> on_side{};    ///< used on that stream only
  bool deterministic = false;          ///< where a device's library sums in an order of its own: in rank order instead
  std::vector<std::weak_ptr<CommunicatorState>> parts{};  ///< groups of these ranks, which follow what is set here
  torch::Tensor few_mine = {}, few_all = {};  ///< of all_gather of a few numbers, kept while their number stays

  void set_timeout(std::chrono::milliseconds to) {
    timeout = to;
    if (size > 1) group.set_timeout(to);
    for_each_part([to](CommunicatorState& part) { part.set_timeout(to); });
  }
  void set_deterministic(bool yes) {
    deterministic = yes;
    for_each_part([yes](CommunicatorState& part) { part.set_deterministic(yes); });
  }

  template <class Visit>
  void for_each_part(Visit&& visit) {
    std::erase_if(parts, [](const auto& part) { return part.expired(); });
    for (const auto& part : parts) visit(*part.lock());
  }

  void attach(ConnectedGroup connected) {
    group = std::move(connected);
    device = group.meeting.device;
    if (device.is_cpu()) return;
    side.emplace(device);
    on_side.emplace(device);
  }

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

/// A collective under way. Its tensors must not be touched until `wait` returns; the result is there after that: on a
/// GPU for what the calling thread's current stream is given from then on, while the host does not wait. Dropping it
/// without `wait` is safe for memory and leaves the result undefined. A default one has nothing to wait for.
class Pending {
 public:
  Pending() = default;
  Pending(Pending&&) = default;
  Pending& operator=(Pending&&) = default;

  /// @throws Error(peer_lost) or Error(collective_timeout)
  void wait() {
    if (const auto on_device = std::move(on_device_)) on_device->wait();
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

  [[nodiscard]] bool waiting() const { return work_ || on_device_; }

 private:
  friend class Communicator;
  using State = std::shared_ptr<detail::CommunicatorState>;

  explicit Pending(std::unique_ptr<detail::DeviceWork> on_device) : on_device_(std::move(on_device)) {}
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
  std::unique_ptr<detail::DeviceWork> on_device_;
};

}  // namespace dovetail
