// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/launch/error.hpp>

#include <cerrno>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/// The few things that loggers do with files. Failures are Error(arguments) with the path and the system's reason: what
/// was asked for cannot be had on this machine.
namespace dovetail::detail {

[[noreturn]] inline void refuse_path(const std::string& what, const std::string& path, int reason) {
  throw Error(ExitCode::arguments, "cannot " + what + " \"" + path + "\": " + std::generic_category().message(reason) +
                                       ". Give a place that can be written to and has space.");
}

/// A file that is written by this process from front to end. Whole texts go to the system in one call, so that whoever
/// reads along never waits for half a line.
class OutputFile {
 public:
  /// Creates the file, or empties it; with `append`, goes on at its end.
  OutputFile(std::string path, bool append = false)
      : path_(std::move(path)),
        descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : O_TRUNC), 0666)) {
    if (descriptor_ < 0) refuse_path("write", path_, errno);
  }
  OutputFile(OutputFile&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  OutputFile& operator=(OutputFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~OutputFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(descriptor_, text.data(), text.size());
      if (written < 0 && errno != EINTR) refuse_path("write", path_, errno);
      if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  /// Returns when the content is on the disk.
  void sync() {
    if (::fsync(descriptor_) != 0 && errno != EINVAL) refuse_path("write", path_, errno);  // EINVAL: a pipe, /dev/null
  }

 private:
  std::string path_;
  int descriptor_;
};

/// Puts `text` in the place of the file's content: a reader sees the old one or the new one, whatever happens
/// meanwhile.
inline void replace_file(const std::string& path, std::string_view text) {
  const std::string beside = path + ".new";
  OutputFile file(beside);
  file.write(text);
  file.sync();
  if (std::rename(beside.c_str(), path.c_str()) != 0) refuse_path("write", path, errno);
}

/// The content of a file, or nothing if there is none that can be read.
inline std::optional<std::string> read_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  std::string text;
  char block[65536];
  ssize_t got = 0;
  while ((got = ::read(descriptor, block, sizeof block)) > 0) text.append(block, static_cast<std::size_t>(got));
  ::close(descriptor);
  if (got < 0) return std::nullopt;
  return text;
}

inline bool exists(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0;
}

/// Renames an earlier run's file, so that nothing is lost: metrics.csv becomes metrics.1.csv, or the next number.
inline void set_aside(const std::string& path) {
  if (!exists(path)) return;
  const std::size_t dot = path.rfind('.');
  for (int number = 1;; ++number) {
    const std::string other = path.substr(0, dot) + "." + std::to_string(number) + path.substr(dot);
    if (exists(other)) continue;
    if (std::rename(path.c_str(), other.c_str()) != 0) refuse_path("rename", path, errno);
    return;
  }
}

/// Makes the directory and those above it; one that is there already is fine if files can be made in it.
inline void make_directories(const std::string& path) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (::mkdir(part.c_str(), 0777) != 0 && errno != EEXIST) {
      const int reason = errno;
      if (struct stat found{}; ::stat(part.c_str(), &found) != 0) refuse_path("make the directory", path, reason);
    }
    if (slash == path.npos) break;
  }
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) refuse_path("make the directory", path, errno);
  if (!S_ISDIR(found.st_mode)) refuse_path("make the directory", path, ENOTDIR);
  if (::access(path.c_str(), W_OK | X_OK) != 0) refuse_path("write into the directory", path, errno);
}

}  // namespace dovetail::detail
