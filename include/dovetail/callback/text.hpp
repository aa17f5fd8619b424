// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>

/// Numbers as people read them. What is read back by programs is written by the loggers, without loss.
namespace dovetail::detail {

/// At most `digits` significant digits: 0.4312, 1.2e-05, nan.
inline std::string short_number(double value, int digits = 4) {
  if (std::isnan(value)) return "nan";
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::general, digits).ptr;
  return {text, end};
}

/// 421,642
inline std::string grouped(int64_t value) {
  std::string text = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t i = text.size(); i > first + 3;) text.insert(i -= 3, 1, ',');
  return text;
}

/// 512 B, 1.6 MiB
inline std::string byte_text(int64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double amount = double(bytes);
  const char* unit = "";
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB", "PiB"}) {
    if (amount < 1023.95) break;  // 1023.95 would be shown as 1024.0
    amount /= 1024;
    unit = larger;
  }
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, amount, std::chars_format::fixed, 1).ptr;
  return std::string(text, end) + " " + unit;
}

/// 0:41, 12:03, 1:02:03
inline std::string duration_text(double seconds) {
  if (!(seconds >= 0 && seconds < 1e9)) return "?";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const auto two = [](int64_t n) { return (n < 10 ? "0" : "") + std::to_string(n); };
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  return (hours > 0 ? std::to_string(hours) + ":" + two(minutes) : std::to_string(minutes)) + ":" + two(whole % 60);
}

}  // namespace dovetail::detail
