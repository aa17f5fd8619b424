// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/gather_text.hpp>
#include <dovetail/launch/terminate.hpp>
#include <dovetail/logger/files.hpp>
#include <dovetail/logger/json_text.hpp>
#include <dovetail/loop/observer.hpp>

#include <cctype>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>

namespace dovetail {

namespace detail {

/// Rank 0 does `work`, which gives a text; every rank returns it, or throws the Error that rank 0 threw. Collective.
template <class Work>
std::string on_rank_zero(Communicator& communicator, Work&& work) {
  if (communicator.size() == 1) return work();
  std::string told;  // "0" and the text, or the exit code and the message
  if (communicator.rank() == 0) {
    try {
      told = "0 " + work();
    } catch (const Error& error) {
      told = std::to_string(static_cast<int>(error.code())) + " " + error.what();
    }
  }
  told = all_gather_text(communicator, told)[0];
  const std::size_t space = told.find(' ');
  const int code = std::stoi(told.substr(0, space));
  std::string text = told.substr(space + 1);
  if (code != 0) throw Error(ExitCode{code}, text);
  return text;
}

/// runs/<name>-<date>-<n> with the first n that is free. The directory is made at once, so that runs which start
/// together get different ones.
inline std::string make_fresh_directory(std::string_view name) {
  std::string stem = "runs/";
  make_directories("runs");
  for (const char c : name)
    stem += std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-' ? c : '-';
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  char date[16];
  stem.append(date, std::strftime(date, sizeof date, "-%Y-%m-%d-", ::localtime_r(&now, &local)));
  for (int n = 1;; ++n) {
    const std::string path = stem + std::to_string(n);
    if (::mkdir(path.c_str(), 0777) == 0) return path;
    if (errno != EEXIST) refuse_path("make the directory", path, errno);
  }
}

/// Is the text a number of JSON? It has no leading zeros or plus sign, no hexadecimal digits, no inf and nan.
inline bool is_json_number(std::string_view text) {
  std::size_t at = text.starts_with('-') ? 1 : 0;
  const auto digits = [&] {
    const std::size_t first = at;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
    return at - first;
  };
  const bool zero = at < text.size() && text[at] == '0';
  const std::size_t whole = digits();
  if (whole == 0 || (zero && whole > 1)) return false;
  if (at < text.size() && text[at] == '.' && (++at, digits() == 0)) return false;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    if (digits() == 0) return false;
  }
  return at == text.size();
}

}  // namespace detail

/// Makes the folder of a run on rank 0 and returns its path on every rank. Collective.
///
/// @param wanted  where; it may be there already. Empty: runs/<name>-<date>-<n>, a new one.
/// @throws Error(arguments), the same on every rank, when it cannot be made or written into
inline std::string make_run_directory(Communicator& communicator, const std::string& wanted,
                                      std::string_view name = "run") {
  return detail::on_rank_zero(communicator, [&] {
    if (wanted.empty()) return detail::make_fresh_directory(name);
    detail::make_directories(wanted);
    return wanted;
  });
}

/// Writes the resolved options to options.json in the folder of a run: one object, in the order of the list; values
/// that are numbers, `true` or `false` are written as such, all others as strings. Another run's file is set aside. On
/// one rank.
/// @throws Error(arguments)
inline void write_options(const std::string& directory, const ResolvedOptions& options) {
  std::string text = "{";
  for (const auto& [name, value] : options) {
    const bool bare = value == "true" || value == "false" || detail::is_json_number(value);
    text += (text.size() > 1 ? ",\n  " : "\n  ") + detail::json_text(name) + ": " +
            (bare ? value : detail::json_text(value));
  }
  text += "\n}\n";
  detail::make_directories(directory);
  const std::string path = directory + "/options.json";
  if (const auto there = detail::read_file(path); there == text) return;
  detail::set_aside(path);
  detail::replace_file(path, text);
}

}  // namespace dovetail
