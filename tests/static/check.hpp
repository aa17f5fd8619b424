// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string_view>

/// What the static tests need beyond static_assert: a check at run time, and the summary that main returns.
namespace check {

inline int done = 0;
inline int failed = 0;

inline void that(bool holds, std::string_view what) {
  ++done;
  if (holds) return;
  ++failed;
  std::printf("FAILED: %.*s\n", static_cast<int>(what.size()), what.data());
}

inline void contains(std::string_view text, std::string_view part) {
  that(text.find(part) != std::string_view::npos, part);
  if (text.find(part) == std::string_view::npos)
    std::printf("  not in: %.*s\n", static_cast<int>(text.size()), text.data());
}

inline int summary(const char* name) {
  std::printf("%s: %d checks at run time, %d failed\n", name, done, failed);
  return failed == 0 && done > 0 ? 0 : 1;
}

}  // namespace check
