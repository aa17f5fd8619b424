// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <system_error>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <dovetail/comm/collective_error.hpp>
#include <dovetail/launch/environment.hpp>

namespace dovetail::detail {

/// A listening socket bound to one address. Left to itself TCPStore listens on every interface, and whoever connects
/// may read and write its keys.
[[nodiscard]] inline int listen_on(const std::string& address, int port) {
  const std::string where = address + ":" + std::to_string(port);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int failed = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found); failed != 0) {
    throw Error(ExitCode::arguments,
                "rank 0 cannot resolve MASTER_ADDR \"" + address + "\": " + ::gai_strerror(failed));
  }
  int error = 0;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const int socket = ::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol);
    if (socket < 0) {
      error = errno;
      continue;
    }
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (::bind(socket, one->ai_addr, one->ai_addrlen) == 0 && ::listen(socket, SOMAXCONN) == 0) {
      ::freeaddrinfo(found);
      return socket;
    }
    error = errno;
    ::close(socket);
  }
  ::freeaddrinfo(found);
  throw Error(ExitCode::arguments, "rank 0 cannot listen on MASTER_ADDR:MASTER_PORT " + where + ": " +
                                       std::generic_category().message(error) +
                                       ". Choose a free port of this machine.");
}

[[nodiscard]] inline c10::intrusive_ptr<c10d::Store> make_store(const Ranks& ranks, std::chrono::milliseconds timeout) {
  const Rendezvous& how = ranks.how;
  c10::intrusive_ptr<c10d::Store> store;
  if (how.kind == Rendezvous::Kind::file) {
    store = c10::make_intrusive<c10d::FileStore>(how.file, ranks.world_size);
  } else {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(how.port);
    options.isServer = ranks.rank == 0 && !how.agent_store;
    options.timeout = timeout;
    options.waitWorkers = false;
    if (options.isServer) options.masterListenFd = listen_on(how.address, how.port);
    store = c10::make_intrusive<c10d::PrefixStore>("dovetail/attempt_" + std::to_string(how.restart_count),
                                                   c10::make_intrusive<c10d::TCPStore>(how.address, options));
  }
  store->setTimeout(timeout);
  return store;
}

/// A store for one more process group of this process. The connection is made once; process groups are told apart by a
/// prefix with their number, which is the same on all ranks because all ranks make the same groups in the same order.
/// @throws Error(collective_timeout, peer_lost, arguments)
[[nodiscard]] inline c10::intrusive_ptr<c10d::Store> next_store(const Ranks& ranks, std::chrono::milliseconds timeout) {
  struct Known {
    c10::intrusive_ptr<c10d::Store> store;
    int groups = 0;
  };
  static std::mutex mutex;
  static std::map<std::string, Known> all;
  const std::lock_guard lock(mutex);
  const Rendezvous& how = ranks.how;
  Known& known = all[std::to_string(ranks.rank) + " " + how.file + how.address + ":" + std::to_string(how.port)];
  if (!known.store) {
    try {
      known.store = make_store(ranks, timeout);
    } catch (const std::exception& cause) {
      throw_collective_error(cause, "the rendezvous", ranks.rank, ranks.world_size, timeout);
    }
  }
  return c10::make_intrusive<c10d::PrefixStore>("group_" + std::to_string(known.groups++), known.store);
}

}  // namespace dovetail::detail
