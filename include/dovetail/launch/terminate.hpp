// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>

#include <dovetail/launch/environment.hpp>
#include <dovetail/launch/transport_errors.hpp>

namespace dovetail {
namespace detail {

/// Ranks that a Launch settled; before that, or without one, what the environment says.
inline Ranks& known_ranks() {
  static Ranks ranks = ranks_from_environment();
  return ranks;
}

[[nodiscard]] inline std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      (quoted += '\\') += c;
    } else if (byte < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      quoted += escape;
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

/// torchrun shows this text in its table of failures, and takes the earliest time stamp for the root cause. The agent
/// cannot bear half a file, hence the rename.
inline void write_error_file(const std::string& path, std::string_view message) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  const std::string beside = path + "." + std::to_string(::getpid());
  const std::string text =
      "{\"message\": " + json_string(message) + ", \"timestamp\": " + std::to_string(seconds) + "}\n";
  std::FILE* const file = std::fopen(beside.c_str(), "w");
  if (file == nullptr) return;
  const bool written = std::fputs(text.c_str(), file) >= 0;
  if (std::fclose(file) == 0 && written) std::rename(beside.c_str(), path.c_str());
}

/// Prints `dovetail: message`, with the rank when there are several, tells torchrun, and ends the process at once: no
/// destructors, as tearing down a process group whose peers are gone may hang.
[[noreturn]] inline void fail(std::string_view message, int code) noexcept {
  static std::atomic_flag failing;
  if (failing.test_and_set())  // another thread is at it
    while (true) ::pause();
  try {
    std::cout.flush();
    std::fflush(nullptr);
    std::string line = "dovetail: ";
    try {
      const Ranks& ranks = known_ranks();
      if (ranks.world_size > 1) line += "[rank " + std::to_string(ranks.rank) + "] ";
    } catch (const Error&) {  // the environment is what is wrong
    }
    (line += message) += '\n';
    // One write, so that the messages of several ranks do not mix.
    if (::write(STDERR_FILENO, line.data(), line.size()) < 0) code = code == 0 ? 1 : code;
    if (const char* path = std::getenv("TORCHELASTIC_ERROR_FILE"); path != nullptr && *path != '\0')
      write_error_file(path, message);
  } catch (...) {  // out of memory: the code still says that it failed
  }
  std::_Exit(code);
}

/// LibTorch appends the C++ stack to its messages; it starts on a line of its own.
[[nodiscard]] inline std::string_view without_stack(std::string_view what) {
  return what.substr(0, what.find("\nException raised from "));
}

[[noreturn]] inline void fail_with_current_exception() noexcept {
  constexpr int user_code = static_cast<int>(ExitCode::user_code);
  const std::exception_ptr current = std::current_exception();
  if (!current) fail("std::terminate was called without an exception.", user_code);
  try {
    std::rethrow_exception(current);
  } catch (const Error& error) {
    fail(error.what(), static_cast<int>(error.code()));
  } catch (const std::exception& error) {
    // Gloo and NCCL watch their connections in threads of their own, where nobody can catch what they throw.
    const std::string_view text = without_stack(error.what());
    const ExitCode failure = is_from_transport(text) ? transport_failure(text) : ExitCode::user_code;
    if (failure == ExitCode::user_code) fail(text, user_code);
    std::string line = "a collective failed because ";
    (((line += transport_advice(failure)) += " (") += text.substr(0, text.find('\n'))) += ")";
    fail(line, static_cast<int>(failure));
  } catch (...) {
    fail("an exception that is no std::exception was not caught.", user_code);
  }
}

}  // namespace detail

/// The ranks of this process: of its Launch, or as the environment says.
/// @throws Error(arguments) when the environment contradicts itself.
[[nodiscard]] inline const Ranks& current_ranks() {
  return detail::known_ranks();
}

}  // namespace dovetail
