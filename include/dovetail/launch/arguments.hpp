// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include <dovetail/launch/error.hpp>

namespace dovetail::detail {

inline constexpr int most_own_ranks = 1024;

/// The number behind `--ranks`.
/// @throws Error(arguments)
[[nodiscard]] inline int ranks_from_text(std::string_view text) {
  int number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size() || number < 1 || number > most_own_ranks) {
    throw Error(ExitCode::arguments, "--ranks is \"" + std::string(text) + "\", expected a whole number from 1 to " +
                                         std::to_string(most_own_ranks) + ".");
  }
  return number;
}

/// Takes `--ranks N` or `--ranks=N` out of a command line; arguments behind `--` are the program's own.
/// @throws Error(arguments) when N is missing or no number from 1 on, or when it is given twice.
[[nodiscard]] inline std::optional<int> take_ranks(int& argc, char** argv) {
  std::optional<int> ranks;
  int kept = argc > 0 ? 1 : 0;
  bool ours = true;
  for (int i = kept; i < argc; ++i) {
    const std::string_view argument = argv[i];
    ours = ours && argument != "--";
    const bool alone = ours && argument == "--ranks";
    if (!alone && !(ours && argument.starts_with("--ranks="))) {
      argv[kept++] = argv[i];
      continue;
    }
    if (ranks) throw Error(ExitCode::arguments, "--ranks is given twice.");
    if (alone && i + 1 == argc)
      throw Error(ExitCode::arguments, "--ranks needs the number of ranks behind it, as in --ranks 2.");
    ranks = ranks_from_text(alone ? std::string_view(argv[++i]) : argument.substr(8));
  }
  argc = kept;
  argv[argc] = nullptr;
  return ranks;
}

}  // namespace dovetail::detail
