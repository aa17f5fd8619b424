// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include <dovetail/launch/error.hpp>

namespace dovetail::detail {

[[nodiscard]] inline bool mentions(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](auto word) { return text.find(word) != text.npos; });
}

/// Is this a message of a library that carries collectives?
[[nodiscard]] inline bool is_from_transport(std::string_view text) {
  return mentions(text, {"gloo", "Gloo", "NCCL", "TCPStore", "FileStore"});
}

/// What such a message says: too late, a peer gone, or ranks that did not fit together; user_code: none of these. None
/// of the libraries has exception types for it, so the words decide.
[[nodiscard]] inline ExitCode transport_failure(std::string_view text) {
  if (mentions(text, {"imed out", "imeout"})) return ExitCode::collective_timeout;
  // Gloo compares what has arrived with what was expected, in its own thread.
  if (mentions(text, {"enforce fail"}) && mentions(text, {"preamble", "nbytes"})) return ExitCode::ranks_disagree;
  if (mentions(text, {"Detected mismatch between collectives"})) return ExitCode::ranks_disagree;
  if (mentions(text, {"onnection", "peer", "ocket", "roken pipe", "unreachable", "refused", "remote process exited"}))
    return ExitCode::peer_lost;
  return ExitCode::user_code;
}

/// Why, and what to do about it.
[[nodiscard]] constexpr std::string_view transport_advice(ExitCode failure) {
  switch (failure) {
    case ExitCode::collective_timeout:
      return "a rank hangs, is much slower, or went another way through the program. Look at what each rank did last; "
             "raise the time-out if the wait is expected.";
    case ExitCode::peer_lost:
      return "another rank is gone. Look at the message of the rank that ended first.";
    case ExitCode::ranks_disagree:
      return "ranks called different collectives, or one with tensors of different sizes. With "
             "TORCH_DISTRIBUTED_DEBUG=DETAIL in the environment every collective is compared before it starts.";
    default:
      return {};
  }
}

}  // namespace dovetail::detail
