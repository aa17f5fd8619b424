// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/launch/terminate.hpp>

#include <string>
#include <string_view>

/// Strings of JSON. Written by hand, as it is little, and a JSON library costs every user of dovetail.hpp most of a
/// second.
namespace dovetail::detail {

/// Length of the UTF-8 sequence at the front of `text`; 0 if it is none.
inline std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xC2 ? 0
                             : lead < 0xE0 ? 2
                             : lead < 0xF0 ? 3
                             : lead < 0xF5 ? 4
                                           : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xED && byte(1) >= 0xA0;
  const bool too_large = lead == 0xF4 && byte(1) >= 0x90;
  return overlong || surrogate || too_large ? 0 : length;
}

/// A string of JSON, quoted; bytes that are no UTF-8 are replaced by U+FFFD, as readers refuse the whole file
/// otherwise.
inline std::string json_text(std::string_view text) {
  std::string valid;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    valid += length > 0 ? text.substr(0, length) : std::string_view("\xEF\xBF\xBD");
    text.remove_prefix(length > 0 ? length : 1);
  }
  return json_string(valid);
}

}  // namespace dovetail::detail
