// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>
#include <torch/csrc/distributed/c10d/debug.h>

#include <dovetail/comm/counting_backend.hpp>
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

/// One connected set of ranks: what the Communicator calls for tensors on the CPU and, where the run computes on
/// another device, for those on that one. `process_group` is the same connections behind c10d's dispatching front,
/// which c10d::Reducer asks for. Groups of some of the ranks meet in `store`.
struct ConnectedGroup {
  c10::intrusive_ptr<c10d::Backend> backend;
  c10::intrusive_ptr<c10d::Backend> device_backend;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  c10::intrusive_ptr<c10d::Store> store;
  Ranks ranks;

  void set_timeout(std::chrono::milliseconds timeout) const {
    backend->setTimeout(timeout);
    if (device_backend) device_backend->setTimeout(timeout);
  }
};

/// What a testing tool puts between each Communicator made from now on and its transport; empty: nothing. See
/// testing/delayed_backend.hpp.
using TransportWrapper = std::function<c10::intrusive_ptr<c10d::Backend>(c10::intrusive_ptr<c10d::Backend>)>;
[[nodiscard]] inline TransportWrapper& transport_wrapper() {
  static TransportWrapper wrapper;
  return wrapper;
}
[[nodiscard]] inline c10::intrusive_ptr<c10d::Backend> wrapped(c10::intrusive_ptr<c10d::Backend> transport) {
  return transport_wrapper() ? transport_wrapper()(std::move(transport)) : transport;
}

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

/// A process group over backends, as c10d::Reducer asks for; what it sends is counted.
[[nodiscard]] inline auto counted_group(const ConnectedGroup& connected, c10d::ProcessGroup::BackendType type,
                                        c10::Device device, const std::shared_ptr<CommunicationCounts>& counts) {
  const auto& cpu = connected.backend;
  auto group = c10::make_intrusive<c10d::ProcessGroup>(connected.store, cpu->getRank(), cpu->getSize());
  group->setBackend(c10::DeviceType::CPU, type, c10::make_intrusive<CountingBackend>(cpu, counts));
  group->setDefaultBackend(type);
  if (connected.device_backend)
    group->setBackend(device.type(), c10d::ProcessGroup::BackendType::CUSTOM,
                      c10::make_intrusive<CountingBackend>(connected.device_backend, counts));
  return group;
}

/// One rank of a world of which nobody else is there.
[[nodiscard]] inline ConnectedGroup record_rank(const Ranks& ranks, std::shared_ptr<CommunicationCounts> counts,
                                                c10::Device device = c10::kCPU) {
  ConnectedGroup connected;
  connected.store = c10::make_intrusive<c10d::HashStore>();
  connected.ranks = ranks;
  connected.backend = wrapped(c10::make_intrusive<RecordingBackend>(ranks.rank, ranks.world_size));
  if (!device.is_cpu()) connected.device_backend = connected.backend;
  connected.process_group = counted_group(connected, c10d::ProcessGroup::BackendType::CUSTOM, device, counts);
  return connected;
}

/// Gloo's connections over ranks that meet in `store`; returns when every one of them is there.
[[nodiscard]] inline c10::intrusive_ptr<c10d::Backend> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                                                    const Ranks& ranks, const Timeouts& timeouts) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeouts.setup);
  options->devices.push_back(gloo_device(ranks));
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, ranks.rank, ranks.world_size, options);
  gloo->barrier()->wait();
  gloo->setTimeout(timeouts.step);
  return gloo;
}

/// With TORCH_DISTRIBUTED_DEBUG=DETAIL in the environment: what compares every collective over the ranks before it
/// starts, over connections of its own. Else `transport` as it is.
[[nodiscard]] inline c10::intrusive_ptr<c10d::Backend> checked(c10::intrusive_ptr<c10d::Backend> transport,
                                                               const c10::intrusive_ptr<c10d::Store>& store,
                                                               const Ranks& ranks, const Timeouts& timeouts) {
  c10d::setDebugLevelFromEnvironment();
  if (c10d::debug_level() != c10d::DebugLevel::Detail) return transport;
  const auto beside = c10::make_intrusive<c10d::PrefixStore>("checks_of_" + transport->getBackendName(), store);
  return c10::make_intrusive<c10d::ProcessGroupWrapper>(transport, connect_gloo(beside, ranks, timeouts));
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

/// Connects ranks that meet in `store`, over Gloo for tensors on the CPU and small agreements, and over NCCL for those
/// on a GPU; returns when every one of them is there.
[[nodiscard]] inline ConnectedGroup connect_over(const c10::intrusive_ptr<c10d::Store>& store, const Ranks& ranks,
                                                 const Timeouts& timeouts,
                                                 const std::shared_ptr<CommunicationCounts>& counts,
                                                 c10::Device device) {
  ConnectedGroup connected;
  connected.store = store;
  connected.ranks = ranks;
  connected.backend = wrapped(checked(connect_gloo(store, ranks, timeouts), store, ranks, timeouts));
  if (!device.is_cpu())
    connected.device_backend = wrapped(checked(connect_nccl(c10::make_intrusive<c10d::PrefixStore>("nccl", store),
                                                            ranks.rank, ranks.world_size, device, timeouts.step),
                                               store, ranks, timeouts));
  connected.process_group = counted_group(connected, c10d::ProcessGroup::BackendType::GLOO, device, counts);
  return connected;
}

/// Connects all ranks of the run.
/// @throws Error(collective_timeout, peer_lost, ranks_disagree, arguments)
[[nodiscard]] inline ConnectedGroup connect_ranks(const Ranks& ranks, const Timeouts& timeouts,
                                                  const std::shared_ptr<CommunicationCounts>& counts,
                                                  c10::Device device = c10::kCPU) {
  if (ranks.how.kind == Rendezvous::Kind::recorded) return record_rank(ranks, counts, device);
  ignore_broken_pipes();
  const auto store = next_store(ranks, timeouts.setup);
  try {
    compare_devices(*store, ranks, device);
    return connect_over(store, ranks, timeouts, counts, device);
  } catch (const std::exception& cause) {
    throw_collective_error(cause, "connecting", ranks.rank, ranks.world_size, timeouts.setup);
  }
}

}  // namespace detail
}  // namespace dovetail
