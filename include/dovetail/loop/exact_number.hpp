// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <string>

namespace dovetail::detail {

/// The shortest text that reads back as the same number. Not for NaN and infinities, whose text is the file format's
/// choice.
inline std::string exact_number(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace dovetail::detail
