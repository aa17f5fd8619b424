// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>
#include <vector>

#include <torch/types.h>

#include <dovetail/launch/error.hpp>

namespace dovetail {
namespace detail {

/// Reads a file that is compressed by gzip, or is not.
class GzipFile {
 public:
  /// @throws Error(data) when it cannot be opened
  explicit GzipFile(const std::string& path) : path_(path) {
    struct stat what {};
    if (::stat(path.c_str(), &what) == 0 && S_ISDIR(what.st_mode))
      throw Error(ExitCode::data, "the data file " + path + " is a folder.");
    file_ = ::gzopen(path.c_str(), "rb");
    if (!file_) {
      throw Error(ExitCode::data, "cannot open the data file " + path + ": " +
                                      std::generic_category().message(errno == 0 ? ENOMEM : errno) + ".");
    }
    ::gzbuffer(file_, 1 << 17);
  }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;
  ~GzipFile() { ::gzclose(file_); }

  /// Reads up to `bytes`; fewer only at the end of the file. @throws Error(data) when the compressed data is cut or
  /// wrong.
  [[nodiscard]] int64_t read(void* to, int64_t bytes) {
    int64_t done = 0;
    while (done < bytes) {
      const auto piece = static_cast<unsigned>(std::min<int64_t>(bytes - done, 1 << 24));
      const int got = ::gzread(file_, static_cast<char*>(to) + done, piece);
      int code = Z_OK;
      const char* reason = ::gzerror(file_, &code);
      if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) {
        throw Error(ExitCode::data, "the data file " + path_ + " is damaged or cut, after " +
                                        std::to_string(done + std::max(got, 0)) + " of " + std::to_string(bytes) +
                                        " bytes: " + (code == Z_ERRNO ? "it cannot be read" : reason) + ".");
      }
      if (got == 0) break;
      done += got;
    }
    return done;
  }

 private:
  std::string path_;
  gzFile file_ = nullptr;
};

[[nodiscard]] inline std::string shape_in_words(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text;
}

}  // namespace detail

/// Reads an IDX file of bytes, as MNIST and its relatives use: two zero bytes, the type (8: unsigned byte), the number
/// of dimensions, their sizes as 32-bit big-endian numbers, then the elements, last dimension fastest. Gzip is
/// recognised.
/// @param dimensions  how many the file must have
/// @return a kByte tensor of the file's shape
/// @throws Error(data) naming the file, what was expected and what was found
[[nodiscard]] inline torch::Tensor read_idx(const std::string& path, int dimensions) {
  detail::GzipFile file(path);
  const auto refuse = [&](const std::string& expected, const std::string& found) {
    throw Error(ExitCode::data,
                "the data file " + path + " cannot be used: expected " + expected + ", found " + found + ".");
  };
  std::array<unsigned char, 4> word{};
  const auto read_word = [&](const char* what) {
    const int64_t got = file.read(word.data(), 4);
    if (got != 4) refuse(std::string("4 bytes of ") + what, std::to_string(got) + " before the end of the file");
  };
  read_word("IDX header");
  const auto hex = [](const std::array<unsigned char, 4>& bytes) {
    std::string text;
    for (const unsigned char byte : bytes)
      for (const int digit : {byte >> 4, byte & 15}) text += "0123456789abcdef"[digit];
    return text;
  };
  const std::array<unsigned char, 4> magic{0, 0, 8, static_cast<unsigned char>(dimensions)};
  if (word != magic) refuse("the IDX magic number " + hex(magic), hex(word));

  std::vector<int64_t> shape;
  int64_t bytes = 1;
  for (int d = 0; d < dimensions; ++d) {
    read_word("dimension sizes");
    shape.push_back((int64_t{word[0]} << 24) | (int64_t{word[1]} << 16) | (int64_t{word[2]} << 8) | int64_t{word[3]});
    if (__builtin_mul_overflow(bytes, shape.back(), &bytes) || bytes > (int64_t{1} << 40))
      refuse("less than a terabyte", detail::shape_in_words(shape) + " elements or more");
  }
  // Grows with what is there, not with what a damaged header promises.
  std::vector<unsigned char> elements;
  for (int64_t done = 0; done < bytes;) {
    const int64_t piece = std::min<int64_t>(bytes - done, 1 << 24);
    elements.resize(static_cast<size_t>(done + piece));
    const int64_t got = file.read(elements.data() + done, piece);
    done += got;
    if (got < piece) {
      refuse(std::to_string(bytes) + " bytes for " + detail::shape_in_words(shape) + " elements",
             std::to_string(done) + " before the end of the file");
    }
  }
  if (file.read(word.data(), 1) != 0)
    refuse("the end of the file behind " + detail::shape_in_words(shape) + " elements", "more bytes");
  torch::Tensor tensor = torch::empty(shape, torch::kByte);
  std::copy(elements.begin(), elements.end(), tensor.data_ptr<uint8_t>());
  return tensor;
}

}  // namespace dovetail
