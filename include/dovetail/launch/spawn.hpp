// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dirent.h>
#include <sched.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <dovetail/launch/error.hpp>

namespace dovetail::detail {

/// A fresh directory that only this user can enter, removed at the end with the files in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    const char* parent = std::getenv("TMPDIR");
    path_ = std::string(parent == nullptr || *parent == '\0' ? "/tmp" : parent) + "/dovetail-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) {
      throw Error(ExitCode::arguments, "cannot make a directory like " + path_ + " for the ranks to meet in: " +
                                           std::generic_category().message(errno) + ". Set TMPDIR to a writable one.");
    }
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    if (DIR* const directory = ::opendir(path_.c_str())) {
      while (const dirent* const entry = ::readdir(directory)) ::unlink((path_ + "/" + entry->d_name).c_str());
      ::closedir(directory);
    }
    ::rmdir(path_.c_str());
  }

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Cores that this process may use.
[[nodiscard]] inline int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

/// The environment of rank `rank` of `ranks`: the launcher's, with the variables that `ranks_from_environment` reads.
[[nodiscard]] inline std::vector<std::string> rank_environment(int rank, int ranks, const std::string& store) {
  const auto number = [](int value) { return std::to_string(value); };
  std::vector<std::pair<std::string, std::string>> set{
      {"RANK", number(rank)},       {"WORLD_SIZE", number(ranks)},
      {"LOCAL_RANK", number(rank)}, {"LOCAL_WORLD_SIZE", number(ranks)},
      {"DOVETAIL_STORE", store},    {"DOVETAIL_LAUNCHER", number(::getpid())}};
  if (std::getenv("OMP_NUM_THREADS") == nullptr)
    set.emplace_back("OMP_NUM_THREADS", number(std::max(1, usable_cores() / ranks)));
  std::vector<std::string> environment;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const auto name = text.substr(0, text.find('='));
    if (std::none_of(set.begin(), set.end(), [&](const auto& one) { return one.first == name; }))
      environment.emplace_back(text);
  }
  for (const auto& [name, value] : set) environment.push_back(name + "=" + value);
  return environment;
}

/// Starts this program once more with the given arguments, environment and signal mask. posix_spawn rather than fork:
/// the program may have threads already.
/// @throws Error(arguments) when the system refuses.
[[nodiscard]] inline pid_t spawn_self(char** argv, std::vector<std::string>& environment, const sigset_t& mask) {
  std::vector<char*> pointers;
  for (auto& variable : environment) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setsigmask(&attributes, &mask);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int failed = ::posix_spawn(&pid, "/proc/self/exe", nullptr, &attributes, argv, pointers.data());
  ::posix_spawnattr_destroy(&attributes);
  if (failed != 0) {
    throw Error(ExitCode::arguments,
                "the system refuses to start another rank: " + std::generic_category().message(failed) + ".");
  }
  return pid;
}

}  // namespace dovetail::detail
