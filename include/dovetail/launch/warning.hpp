// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>

namespace dovetail {

/// Says on stderr what does not stop the run, but should be looked at.
inline void warn(const std::string& what) {
  std::fputs(("dovetail: warning: " + what + "\n").c_str(), stderr);
}

}  // namespace dovetail
