// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <string>
#include <string_view>

#include <dovetail/launch/error.hpp>

namespace dovetail::detail {

/// The first line of what a library threw, without the stack that LibTorch appends.
[[nodiscard]] inline std::string first_line(const char* what) {
  const std::string_view text = what;
  return std::string(text.substr(0, text.find('\n')));
}

/// Turns what c10d or Gloo threw into an Error that says which collective, on which rank, and what to do. Neither of
/// them has exception types for "too late" and "peer gone", so the words of the message decide. `among` names the ranks
/// of the run where `rank` counts in a group of them.
[[noreturn]] inline void throw_collective_error(const std::exception& cause, std::string_view collective, int rank,
                                                int size, std::chrono::milliseconds timeout,
                                                const std::string& among = {}) {
  if (const auto* ours = dynamic_cast<const Error*>(&cause)) throw *ours;
  const std::string reason = first_line(cause.what());
  const auto mentions = [&](std::string_view word) { return reason.find(word) != std::string::npos; };
  const std::string where =
      std::string(collective) + " on rank " + std::to_string(rank) + " of " + std::to_string(size) + among;
  if (mentions("imed out") || mentions("imeout")) {
    throw Error(ExitCode::collective_timeout,
                where + " waited " + std::to_string(timeout.count()) +
                    " ms for the other ranks: one of them hangs, is much slower, or went another way through the "
                    "program. Look at what each rank did last; raise the time-out if the wait is expected. (" +
                    reason + ")");
  }
  for (const std::string_view word : {"onnection", "peer", "ocket", "roken pipe", "unreachable", "refused"}) {
    if (!mentions(word)) continue;
    throw Error(ExitCode::peer_lost, where +
                                         " failed because another rank is gone. Look at the message of the rank "
                                         "that ended first. (" +
                                         reason + ")");
  }
  throw Error(ExitCode::user_code, where + " failed: " + reason);
}

}  // namespace dovetail::detail
