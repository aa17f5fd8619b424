// SPDX-License-Identifier: Apache-2.0
// For tests that start processes: runs this program once more with other arguments, with a time limit, and sees whether
// it leaves processes or files behind.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace support {

using Words = std::vector<std::string>;

/// Whether the environment asks for all cases. Else each value of what is varied is still tested, and each pair of
/// values that may depend on each other, but not every combination.
[[nodiscard]] inline bool long_tests() {
  const char* value = std::getenv("DOVETAIL_LONG");
  return value != nullptr && *value != '\0';
}

/// What became of a run.
struct Ended {
  int code = -1;          ///< exit code, or 128 + signal
  std::string output;     ///< stdout and stderr together
  bool in_time = true;    ///< else it was killed
  bool alone = true;      ///< no process of its group was left when it ended
  Words left_files = {};  ///< in its TMPDIR

  [[nodiscard]] bool says(const std::string& text) const { return output.find(text) != std::string::npos; }
  [[nodiscard]] int times(const std::string& text) const {
    int count = 0;
    for (size_t at = output.find(text); at != std::string::npos; at = output.find(text, at + text.size())) ++count;
    return count;
  }
};

/// A started copy of this program: leader of a process group, with a TMPDIR of its own.
class Program {
 public:
  explicit Program(const Words& arguments, const Words& environment = {}) {
    if (::mkdtemp(folder_.data()) == nullptr) std::abort();
    Words words{"/proc/self/exe"}, variables = environment;
    words.insert(words.end(), arguments.begin(), arguments.end());
    variables.push_back("TMPDIR=" + folder_);
    for (char** one = ::environ; *one != nullptr; ++one) {
      const std::string text = *one, name = text.substr(0, text.find('=') + 1);
      bool given = false;
      for (const auto& variable : variables) given = given || variable.rfind(name, 0) == 0;
      if (!given) variables.push_back(text);
    }
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    if (::posix_spawn(&pid_, "/proc/self/exe", &actions, &attributes, pointers(words).data(),
                      pointers(variables).data()) != 0)
      std::abort();
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
    ::close(ends[1]);
    pipe_ = ends[0];
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (pipe_ >= 0) ::close(pipe_);
    std::filesystem::remove_all(folder_);
  }

  [[nodiscard]] pid_t pid() const { return pid_; }

  /// Reads output until `done` is true of it or every process that could write more is gone; false when `seconds` are
  /// over.
  bool read_until(const std::function<bool(const std::string&)>& done, int seconds) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    while (!done(output_)) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(limit - std::chrono::steady_clock::now()).count();
      pollfd wait{pipe_, POLLIN, 0};
      if (left <= 0 || ::poll(&wait, 1, static_cast<int>(left)) == 0) return false;
      char buffer[4096];
      const auto got = ::read(pipe_, buffer, sizeof buffer);
      if (got <= 0) return true;
      output_.append(buffer, static_cast<size_t>(got));
    }
    return true;
  }

  /// Waits for the end of the program and of everything that it started.
  [[nodiscard]] Ended end(int seconds) {
    Ended ended;
    ended.in_time = read_until([](const std::string&) { return false; }, seconds);
    if (!ended.in_time) ::kill(-pid_, SIGKILL);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    ended.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    // The dead wait for init to collect them when their parent was killed; they hold nothing any more.
    ended.alone = ended.in_time && !living_member();
    if (!ended.alone) ::kill(-pid_, SIGKILL);
    ended.output = output_;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) ended.left_files.push_back(entry.path());
    return ended;
  }

 private:
  static std::vector<char*> pointers(Words& words) {
    std::vector<char*> all;
    for (auto& word : words) all.push_back(word.data());
    all.push_back(nullptr);
    return all;
  }

  /// Whether a process of the group is there and no zombie.
  [[nodiscard]] bool living_member() const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      if (std::FILE* file = std::fopen((entry.path() / "stat").c_str(), "r")) {
        char state = 0;
        int parent = 0, group = 0;
        const int fields = std::fscanf(file, "%*d (%*[^)]) %c %d %d", &state, &parent, &group);
        std::fclose(file);
        if (fields == 3 && group == pid_ && state != 'Z' && state != 'X') return true;
      }
    }
    return false;
  }

  std::string folder_ = "/tmp/dovetail-test-XXXXXX";
  pid_t pid_ = -1;
  int pipe_ = -1;
  std::string output_;
};

[[nodiscard]] inline Ended run_self(const Words& arguments, const Words& environment = {}, int seconds = 60) {
  return Program(arguments, environment).end(seconds);
}

/// Counts what was checked, and prints what was not as it should be.
class Checks {
 public:
  void that(bool holds, const std::string& what) {
    ++checked_;
    if (holds) return;
    ++wrong_;
    std::cout << "WRONG: " << what << "\n";
  }

  /// As it should be for any run: in time, nothing left, the code; prints its output if not.
  void ended(const Ended& run, int code, const std::string& what, const Words& says = {}) {
    const int before = wrong_;
    that(run.in_time, what + ": took too long");
    that(run.alone, what + ": left a process behind");
    that(run.left_files.empty(), what + ": left files behind");
    that(run.code == code, what + ": exit code " + std::to_string(run.code) + ", expected " + std::to_string(code));
    for (const auto& text : says) that(run.says(text), what + ": does not say \"" + text + "\"");
    std::cout << (wrong_ == before ? "ok     " : "WRONG  ") << what << " -> " << run.code << "\n";
    if (wrong_ != before) std::cout << "---- its output\n" << run.output << "----\n";
    std::cout.flush();
  }

  /// For main's end.
  [[nodiscard]] int summary() const {
    std::cout << checked_ << " checks, " << wrong_ << " wrong\n";
    return wrong_ == 0 ? 0 : 1;
  }

 private:
  int checked_ = 0, wrong_ = 0;
};

}  // namespace support
