// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <csignal>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include <dovetail/launch/rank_outcomes.hpp>
#include <dovetail/launch/spawn.hpp>

namespace dovetail::detail {

/// The launcher's side of `--ranks N`: starts the ranks, passes signals on, and sees to it that no rank outlives a
/// failed one. Runs in a process that does nothing else, so signals are waited for, not handled.
class Supervisor {
 public:
  using Clock = std::chrono::steady_clock;

  // A failed run is over for all ranks; they get time to leave, not to finish.
  static constexpr std::chrono::seconds grace_after_failure{5};
  // A signal from outside may mean "save and go".
  static constexpr std::chrono::seconds grace_after_signal{30};
  // When the first rank seen to fail is a victim, the culprit is about to end: wait for its code before dismissing it.
  static constexpr std::chrono::seconds wait_for_culprit{1};

  Supervisor() {
    ::sigemptyset(&watched_);
    for (const int one : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&watched_, one);
    std::signal(SIGCHLD, SIG_DFL);  // if it is ignored, ended ranks leave no exit code
    ::sigprocmask(SIG_BLOCK, &watched_, &inherited_);
  }

  /// Runs `ranks` copies of this program to their end. Returns the exit code of the whole: 0, or that of the rank that
  /// failed first, and says which on stderr.
  /// @throws Error(arguments) when ranks cannot be started; those that were are gone then.
  [[nodiscard]] int run(char** argv, int ranks) {
    const TemporaryDirectory directory;
    start(argv, ranks, directory.path() + "/store");
    supervise();
    const Outcome* failure = first_failure(outcomes_);
    if (failure == nullptr) return 0;
    const std::string line =
        "dovetail: " + in_words(*failure) + "; the run of " + std::to_string(ranks) + " ranks is over.\n";
    if (::write(STDERR_FILENO, line.data(), line.size()) < 0) return failure->code;
    return failure->code;
  }

 private:
  void start(char** argv, int ranks, const std::string& store) {
    try {
      for (int rank = 0; rank < ranks; ++rank) {
        auto environment = rank_environment(rank, ranks, store);
        running_.push_back({rank, spawn_self(argv, environment, inherited_)});
      }
    } catch (...) {
      signal_all(SIGKILL);
      for (const Process& one : running_) ::waitpid(one.pid, nullptr, 0);
      throw;
    }
  }

  void supervise() {
    while (true) {
      reap();
      if (running_.empty()) return;
      const auto now = Clock::now();
      if (dismiss_at_ && now >= *dismiss_at_) {
        dismiss_at_.reset();
        dismissed_ = true;
        signal_all(SIGTERM);
        signal_all(SIGCONT);  // a stopped rank cannot take the signal
        kill_at_ = now + grace_after_failure;
      }
      if (kill_at_ && now >= *kill_at_) {
        kill_at_.reset();
        dismissed_ = dismissed_ || !forwarded_;
        signal_all(SIGKILL);
      }
      wait_for_signal(now);
    }
  }

  void reap() {
    for (size_t i = 0; i < running_.size();) {
      int status = 0;
      if (::waitpid(running_[i].pid, &status, WNOHANG) == 0) {
        ++i;
        continue;
      }
      const Outcome outcome{running_[i].rank, exit_code_of(status), dismissed_};
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
      outcomes_.push_back(outcome);
      if (outcome.code != 0) note_failure(outcome.code);
    }
  }

  void note_failure(int code) {
    if (dismissed_ || forwarded_) return;  // the others are on their way already
    const auto when = Clock::now() + (is_victim(code) ? wait_for_culprit : std::chrono::seconds(0));
    if (!dismiss_at_ || when < *dismiss_at_) dismiss_at_ = when;
  }

  void wait_for_signal(Clock::time_point now) {
    std::optional<Clock::time_point> until = dismiss_at_;
    if (kill_at_ && (!until || *kill_at_ < *until)) until = kill_at_;
    timespec patience{};
    if (until) {
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(*until - now).count();
      patience.tv_sec = std::max<long>(0, left / 1'000'000'000);
      patience.tv_nsec = std::max<long>(0, left % 1'000'000'000);
    }
    siginfo_t info{};
    const int signal = ::sigtimedwait(&watched_, &info, until ? &patience : nullptr);
    if (signal < 0 || signal == SIGCHLD) return;
    // What the terminal sends (^C) the ranks have got already, as they are in the same process group.
    const bool from_terminal = info.si_code == SI_KERNEL;
    if (forwarded_) {
      signal_all(SIGKILL);  // asked a second time
    } else {
      if (!from_terminal) signal_all(signal);
      kill_at_ = Clock::now() + grace_after_signal;
    }
    forwarded_ = true;
  }

  void signal_all(int signal) const {
    for (const Process& one : running_) ::kill(one.pid, signal);
  }

  struct Process {
    int rank = 0;
    pid_t pid = 0;
  };

  sigset_t watched_{}, inherited_{};
  std::vector<Process> running_;
  std::vector<Outcome> outcomes_;  // in the order in which ranks ended
  bool dismissed_ = false;         // ranks were told to go because one failed
  bool forwarded_ = false;         // a signal from outside was passed on
  std::optional<Clock::time_point> dismiss_at_, kill_at_;
};

}  // namespace dovetail::detail
