// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>
#include <torch/csrc/distributed/c10d/debug.h>

#include <dovetail/comm/counts.hpp>
#include <dovetail/comm/nccl.hpp>
#include <dovetail/comm/recording_backend.hpp>
#include <dovetail/comm/store.hpp>

namespace dovetail {

/// How long a rank waits for the others: until all are connected, and in each collective after that.
struct Timeouts {
  std::chrono::milliseconds setup = std::chrono::minutes(10);
  std::chrono::milliseconds step = std::chrono::seconds(30);
};

namespace detail {

using GlooDevices = decltype(c10d::ProcessGroupGloo::Options::devices);

/// Where some ranks meet, and what they are connected by.
struct Meeting {
  c10::intrusive_ptr<c10d::Store> store = {};
  GlooDevices gloo_devices = {};  ///< none: nobody else is there, see testing/recorded_rank.hpp
  c10::Device device = c10::kCPU;
  Timeouts timeouts = {};
  std::shared_ptr<CommunicationCounts> counts = {};
};

/// One connected set of ranks: what the Communicator calls for tensors on the CPU and, where the run computes on
/// another device, for those on that one.
struct ConnectedGroup {
  Meeting meeting = {};
  c10::intrusive_ptr<c10d::Backend> backend = {};
  c10::intrusive_ptr<c10d::Backend> device_backend = {};

  void set_timeout(std::chrono::milliseconds timeout) const {
    backend->setTimeout(timeout);
    if (device_backend) device_backend->setTimeout(timeout);
  }
};

/// What a testing tool puts between each Communicator made from now on and its transport; empty: nothing. See
/// testing/delayed_transport.hpp.
using TransportWrapper = std::function<c10::intrusive_ptr<c10d::Backend>(c10::intrusive_ptr<c10d::Backend>)>;
[[nodiscard]] inline TransportWrapper& transport_wrapper() {
  static TransportWrapper wrapper;
  return wrapper;
}
[[nodiscard]] inline c10::intrusive_ptr<c10d::Backend> wrapped(c10::intrusive_ptr<c10d::Backend> transport) {
  return transport_wrapper() ? transport_wrapper()(std::move(transport)) : transport;
}

/// Gloo's connections are bound to one address: loopback when all ranks are on this machine, else the interface that
/// GLOO_SOCKET_IFNAME names, else the address that the machine's name resolves to. That of loopback is made once: each
/// device has a thread, which Gloo takes 10 ms to end.
[[nodiscard]] inline auto gloo_device(const Ranks& ranks) {
  if (ranks.local_world_size == ranks.world_size) {
    static auto loopback = c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
    static pid_t owner = ::getpid();
    if (std::exchange(owner, ::getpid()) != ::getpid())  // forked: the thread stayed behind
      loopback = c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
    return loopback;
  }
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

/// Gloo's connections; returns when every rank is there.
[[nodiscard]] inline c10::intrusive_ptr<c10d::Backend> connect_gloo(const Meeting& meeting, int rank, int size) {
  auto options = c10d::ProcessGroupGloo::Options::create(meeting.timeouts.setup);
  options->devices = meeting.gloo_devices;
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(meeting.store, rank, size, options);
  gloo->barrier()->wait();
  gloo->setTimeout(meeting.timeouts.step);
  return gloo;
}

/// The same meeting, for other connections of its ranks or of some of them.
[[nodiscard]] inline Meeting beside(Meeting meeting, const std::string& name) {
  meeting.store = c10::make_intrusive<c10d::PrefixStore>(name, meeting.store);
  return meeting;
}

/// With TORCH_DISTRIBUTED_DEBUG=DETAIL in the environment: what compares every collective over the ranks before it
/// starts, over connections of its own. Else `transport` as it is.
[[nodiscard]] inline c10::intrusive_ptr<c10d::Backend> checked(c10::intrusive_ptr<c10d::Backend> transport,
                                                               const Meeting& meeting) {
  c10d::setDebugLevelFromEnvironment();
  if (c10d::debug_level() != c10d::DebugLevel::Detail) return transport;
  auto comparing = connect_gloo(beside(meeting, "checks_of_" + transport->getBackendName()), transport->getRank(),
                                transport->getSize());
  return c10::make_intrusive<c10d::ProcessGroupWrapper>(std::move(transport), std::move(comparing));
}

/// Connects the ranks of a meeting, over Gloo for tensors on the CPU and small agreements, and over NCCL for those on a
/// GPU; returns when every one of them is there.
/// @throws whatever c10d does
[[nodiscard]] inline ConnectedGroup connect_at(Meeting meeting, int rank, int size) {
  ConnectedGroup connected{.meeting = std::move(meeting)};
  const Meeting& at = connected.meeting;
  const bool alone = at.gloo_devices.empty(), on_device = !at.device.is_cpu();
  if (alone) {
    connected.backend = wrapped(c10::make_intrusive<RecordingBackend>(rank, size));
    if (on_device) connected.device_backend = connected.backend;
  } else {
    connected.backend = wrapped(checked(connect_gloo(at, rank, size), at));
    if (on_device)
      connected.device_backend =
          wrapped(checked(connect_nccl(beside(at, "nccl").store, rank, size, at.device, at.timeouts.step), at));
  }
  return connected;
}

/// Connects some ranks of a group in the same way, this one among them, as rank `rank` of `size`. `name` tells their
/// group from others of the same ranks.
/// @throws whatever c10d does
[[nodiscard]] inline ConnectedGroup connect_part(const ConnectedGroup& all, const std::string& name, int rank,
                                                 int size) {
  return connect_at(beside(all.meeting, name), rank, size);
}

/// Some ranks on a GPU and some not would wait for each other in vain.
/// @throws Error(ranks_disagree)
inline void compare_devices(c10d::Store& store, const Ranks& ranks, c10::Device device) {
  const std::string mine = c10::DeviceTypeName(device.type(), true), key = "device";
  if (ranks.rank == 0) store.set(key, mine);
  if (const std::string first = store.get_to_str(key); first != mine)
    throw Error(ExitCode::ranks_disagree, "rank " + std::to_string(ranks.rank) + " computes on " + mine +
                                              ", rank 0 on " + first + ". Give every rank the same device.");
}

/// Connects all ranks of a run; returns when every one of them is there.
/// @throws Error(collective_timeout, peer_lost, ranks_disagree, arguments)
[[nodiscard]] inline ConnectedGroup connect_ranks(const Ranks& ranks, const Timeouts& timeouts,
                                                  std::shared_ptr<CommunicationCounts> counts,
                                                  c10::Device device = c10::kCPU) {
  Meeting meeting{.device = device, .timeouts = timeouts, .counts = std::move(counts)};
  if (ranks.how.kind == Rendezvous::Kind::recorded) {
    meeting.store = c10::make_intrusive<c10d::HashStore>();
    return connect_at(std::move(meeting), ranks.rank, ranks.world_size);
  }
  ignore_broken_pipes();
  meeting.store = next_store(ranks, timeouts.setup);
  try {
    compare_devices(*meeting.store, ranks, device);
    meeting.gloo_devices.push_back(gloo_device(ranks));
    return connect_at(std::move(meeting), ranks.rank, ranks.world_size);
  } catch (const std::exception& cause) {
    throw_collective_error(cause, "connecting", ranks.rank, ranks.world_size, timeouts.setup);
  }
}

}  // namespace detail
}  // namespace dovetail
