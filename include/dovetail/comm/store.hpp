// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <dovetail/comm/collective_error.hpp>
#include <dovetail/launch/environment.hpp>

namespace dovetail::detail {

/// A list from getaddrinfo.
struct Addresses {
  explicit Addresses(addrinfo* list) : first(list) {}
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  ~Addresses() { ::freeaddrinfo(first); }

  addrinfo* first;
};

/// The addresses of MASTER_ADDR. A name server that does not answer is asked again twice; TCPStore would ask it until
/// the time for set-up is over.
/// @throws Error(arguments) when the name has none
[[nodiscard]] inline Addresses resolve(const std::string& name, int port, int rank) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  for (int attempt = 1;; ++attempt) {
    addrinfo* found = nullptr;
    const int failed = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (failed == 0) return Addresses(found);
    if (failed != EAI_AGAIN || attempt == 3)
      throw Error(ExitCode::arguments, "rank " + std::to_string(rank) + " cannot resolve MASTER_ADDR \"" + name +
                                           "\": " + ::gai_strerror(failed) +
                                           ". Set it to a name or address of rank 0's machine.");
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

/// Refuses a file for the ranks to meet in that no rank could make.
/// @throws Error(arguments)
inline void check_store_file(const std::string& file, int rank) {
  const auto is_folder = [](const std::string& path) {
    struct stat found {};
    return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
  };
  const std::size_t slash = file.rfind('/');
  const std::string folder = slash == file.npos ? "." : file.substr(0, std::max<std::size_t>(slash, 1));
  const bool there = is_folder(folder);
  if (there && !is_folder(file) && ::access(folder.c_str(), W_OK | X_OK) == 0) return;
  throw Error(ExitCode::arguments, "rank " + std::to_string(rank) + " cannot use DOVETAIL_STORE \"" + file + "\": " +
                                       (there ? "it is a folder, or lies in one that cannot be written to"
                                              : "there is no folder " + folder) +
                                       ". Set it to a new file in a folder that every rank can write to.");
}

/// c10d's FileStore looks for a key every 10 ms, and connecting waits for two or three keys one after the other. This
/// one looks every 0.1 ms at first, for about as long as ranks take to connect where all of them run.
class PromptFileStore final : public c10d::FileStore {
 public:
  using FileStore::FileStore;
  using FileStore::wait;

  std::vector<uint8_t> get(const std::string& key) override {
    look_often({key});
    return FileStore::get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    look_often(keys, timeout);
    FileStore::wait(keys, timeout);
  }

 private:
  void look_often(const std::vector<std::string>& keys, std::chrono::milliseconds timeout = std::chrono::minutes(1)) {
    using namespace std::chrono;
    const auto end = steady_clock::now() + std::min(timeout, milliseconds(10));
    while (steady_clock::now() < end && !check(keys)) std::this_thread::sleep_for(microseconds(100));
  }
};

/// A listening socket bound to one address. Left to itself TCPStore listens on every interface, and whoever connects
/// may read and write its keys.
[[nodiscard]] inline int listen_on(const std::string& address, int port) {
  const std::string where = address + ":" + std::to_string(port);
  const Addresses found = resolve(address, port, 0);
  int error = 0;
  for (const addrinfo* one = found.first; one != nullptr; one = one->ai_next) {
    const int socket = ::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol);
    if (socket < 0) {
      error = errno;
      continue;
    }
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (::bind(socket, one->ai_addr, one->ai_addrlen) == 0 && ::listen(socket, SOMAXCONN) == 0) return socket;
    error = errno;
    ::close(socket);
  }
  throw Error(ExitCode::arguments, "rank 0 cannot listen on MASTER_ADDR:MASTER_PORT " + where + ": " +
                                       std::generic_category().message(error) +
                                       ". Choose a free port of this machine.");
}

[[nodiscard]] inline c10::intrusive_ptr<c10d::Store> make_store(const Ranks& ranks, std::chrono::milliseconds timeout) {
  const Rendezvous& how = ranks.how;
  c10::intrusive_ptr<c10d::Store> store;
  if (how.kind == Rendezvous::Kind::file) {
    check_store_file(how.file, ranks.rank);
    store = c10::make_intrusive<PromptFileStore>(how.file, ranks.world_size);
  } else {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(how.port);
    options.isServer = ranks.rank == 0 && !how.agent_store;
    options.timeout = timeout;
    options.waitWorkers = false;
    if (options.isServer)
      options.masterListenFd = listen_on(how.address, how.port);
    else
      (void)resolve(how.address, how.port, ranks.rank);
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
