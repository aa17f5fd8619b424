// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include <dovetail/launch/error.hpp>

namespace dovetail::detail {

/// How one rank ended.
struct Outcome {
  int rank = 0;
  int code = 0;            ///< exit code, or 128 + signal
  bool dismissed = false;  ///< the launcher had told it to go, as another rank had failed
};

[[nodiscard]] inline int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

/// A rank that only noticed that another one is gone or late.
[[nodiscard]] constexpr bool is_victim(int code) {
  return code == static_cast<int>(ExitCode::peer_lost) || code == static_cast<int>(ExitCode::collective_timeout);
}

/// The rank that a run failed for, or nullptr when all ended well. Outcomes are in the order in which ranks ended, but
/// a victim may be seen to end before the culprit: the first that is neither a victim nor was dismissed decides; if all
/// are victims, one that waited in vain tells more than one that lost its peer.
[[nodiscard]] inline const Outcome* first_failure(const std::vector<Outcome>& outcomes) {
  const Outcome* best = nullptr;
  int least = 0;
  for (const Outcome& one : outcomes) {
    if (one.code == 0) continue;
    int weight = one.code == static_cast<int>(ExitCode::peer_lost) ? 2 : is_victim(one.code) ? 1 : 0;
    if (one.dismissed &&
        (one.code == 128 + SIGTERM || one.code == 128 + SIGKILL || one.code == static_cast<int>(ExitCode::preempted))) {
      weight = 3;
    }
    if (best == nullptr || weight < least) {
      best = &one;
      least = weight;
    }
  }
  return best;
}

[[nodiscard]] inline std::string in_words(const Outcome& outcome) {
  const std::string rank = "rank " + std::to_string(outcome.rank);
  if (outcome.code > 128) {
    const int signal = outcome.code - 128;
    const char* name = ::strsignal(signal);
    return rank + " was ended by signal " + std::to_string(signal) + " (" + (name == nullptr ? "unknown" : name) + ")";
  }
  return rank + " ended with exit code " + std::to_string(outcome.code);
}

}  // namespace dovetail::detail
