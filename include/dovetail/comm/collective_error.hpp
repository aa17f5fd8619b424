// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <string>
#include <string_view>

#include <dovetail/launch/transport_errors.hpp>

namespace dovetail::detail {

/// The first line of what a library threw, without the stack that LibTorch appends.
[[nodiscard]] inline std::string first_line(const char* what) {
  const std::string_view text = what;
  return std::string(text.substr(0, text.find('\n')));
}

/// Turns what c10d, Gloo or NCCL threw into an Error that says which collective, on which rank, and what to do. `among`
/// names the ranks of the run where `rank` counts in a group of them.
[[noreturn]] inline void throw_collective_error(const std::exception& cause, std::string_view collective, int rank,
                                                int size, std::chrono::milliseconds timeout,
                                                const std::string& among = {}) {
  if (const auto* ours = dynamic_cast<const Error*>(&cause)) throw *ours;
  const std::string reason = first_line(cause.what());
  const std::string where =
      std::string(collective) + " on rank " + std::to_string(rank) + " of " + std::to_string(size) + among;
  const ExitCode failure = transport_failure(reason);
  const std::string advice(transport_advice(failure));
  switch (failure) {
    case ExitCode::collective_timeout:
      throw Error(failure, where + " waited " + std::to_string(timeout.count()) + " ms for the other ranks: " + advice +
                               " (" + reason + ")");
    case ExitCode::peer_lost:
    case ExitCode::ranks_disagree:
      throw Error(failure, where + " failed because " + advice + " (" + reason + ")");
    default:
      throw Error(ExitCode::user_code, where + " failed: " + reason);
  }
}

}  // namespace dovetail::detail
