// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <utility>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <dovetail/comm/counting_backend.hpp>
#include <dovetail/comm/recording_backend.hpp>
#include <dovetail/comm/store.hpp>

namespace dovetail {

/// How long a rank waits for the others: until all are connected, and in each collective after that.
struct Timeouts {
  std::chrono::milliseconds setup = std::chrono::minutes(10);
  std::chrono::milliseconds step = std::chrono::seconds(30);
};

namespace detail {

/// One connected set of ranks. `backend` is what the Communicator calls; `process_group` is the same connections behind
/// c10d's dispatching front, which c10d::Reducer asks for. Groups of some of the ranks meet in `store`.
struct ConnectedGroup {
  c10::intrusive_ptr<c10d::Backend> backend;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  c10::intrusive_ptr<c10d::Store> store;
};

/// Gloo's connections are bound to one address: loopback when all ranks are on this machine, else the interface that
/// GLOO_SOCKET_IFNAME names, else the address that the machine's name resolves to.
[[nodiscard]] inline auto gloo_device(const Ranks& ranks) {
  if (ranks.local_world_size == ranks.world_size) return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"))
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

/// Gloo writes to sockets without MSG_NOSIGNAL: with the default action a rank whose peer is gone would be ended by
/// SIGPIPE instead of getting an exception that says so. A handler of the user's own stays.
inline void ignore_broken_pipes() {
  struct sigaction action {};
  if (::sigaction(SIGPIPE, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
      action.sa_handler == SIG_DFL)
    std::signal(SIGPIPE, SIG_IGN);
}

/// A process group over one backend, as c10d::Reducer asks for; what it sends is counted.
[[nodiscard]] inline auto counted_group(const c10::intrusive_ptr<c10d::Store>& store,
                                        c10::intrusive_ptr<c10d::Backend> backend, c10d::ProcessGroup::BackendType type,
                                        std::shared_ptr<CommunicationCounts> counts) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, backend->getRank(), backend->getSize());
  group->setBackend(c10::DeviceType::CPU, type,
                    c10::make_intrusive<CountingBackend>(std::move(backend), std::move(counts)));
  group->setDefaultBackend(type);
  return group;
}

/// One rank of a world of which nobody else is there.
[[nodiscard]] inline ConnectedGroup record_rank(const Ranks& ranks, std::shared_ptr<CommunicationCounts> counts) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  auto recording = c10::make_intrusive<RecordingBackend>(ranks.rank, ranks.world_size);
  auto group = counted_group(store, recording, c10d::ProcessGroup::BackendType::CUSTOM, std::move(counts));
  return {std::move(recording), std::move(group), std::move(store)};
}

using GlooDevices = decltype(c10d::ProcessGroupGloo::Options::devices);

/// Connects the ranks that share a store; returns when every one of them is there.
[[nodiscard]] inline ConnectedGroup connect_gloo(c10::intrusive_ptr<c10d::Store> store, GlooDevices devices, int rank,
                                                 int size, const Timeouts& timeouts,
                                                 std::shared_ptr<CommunicationCounts> counts) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeouts.setup);
  options->devices = std::move(devices);
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
  gloo->barrier()->wait();
  gloo->setTimeout(timeouts.step);

  auto group = counted_group(store, gloo, c10d::ProcessGroup::BackendType::GLOO, std::move(counts));
  return {std::move(gloo), std::move(group), std::move(store)};
}

/// Connects all ranks; returns when every one of them is there.
/// @throws Error(collective_timeout, peer_lost, arguments)
[[nodiscard]] inline ConnectedGroup connect_gloo(const Ranks& ranks, const Timeouts& timeouts,
                                                 std::shared_ptr<CommunicationCounts> counts) {
  ignore_broken_pipes();
  auto store = next_store(ranks, timeouts.setup);
  try {
    return connect_gloo(std::move(store), {gloo_device(ranks)}, ranks.rank, ranks.world_size, timeouts,
                        std::move(counts));
  } catch (const std::exception& cause) {
    throw_collective_error(cause, "connecting", ranks.rank, ranks.world_size, timeouts.setup);
  }
}

}  // namespace detail
}  // namespace dovetail
