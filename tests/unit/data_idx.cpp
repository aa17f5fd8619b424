// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <dovetail/data/fashion_mnist.hpp>
#include <dovetail/data/idx.hpp>

#include <unistd.h>
#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace {

using dovetail::Error;
using dovetail::ExitCode;
using dovetail::FashionMNIST;

using Bytes = std::string;

/// A folder of its own for each test, gone at the end.
struct Folder {
  Folder() : path("/tmp/dovetail-idx-XXXXXX") { REQUIRE(::mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }

  std::string write(const std::string& name, const Bytes& content) const {
    std::ofstream(path + "/" + name, std::ios::binary) << content;
    return path + "/" + name;
  }

  std::string path;
};

Bytes big_endian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

Bytes idx(const std::vector<uint32_t>& shape, const Bytes& elements) {
  Bytes file{0, 0, 8, static_cast<char>(shape.size())};
  for (const uint32_t size : shape) file += big_endian(size);
  return file + elements;
}

Bytes gzip(const Bytes& plain) {
  z_stream stream{};
  REQUIRE(::deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  Bytes packed(plain.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(::deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  ::deflateEnd(&stream);
  return packed;
}

/// The message of the Error(data) that `f` throws.
template <class F>
std::string complaint(F f) {
  try {
    f();
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::data);
    return error.what();
  }
  return "no error";
}

std::string complaint_about(const std::string& path, int dimensions) {
  const std::string text = complaint([&] { (void)dovetail::read_idx(path, dimensions); });
  if (text != "no error") CHECK_THAT(text, Catch::Matchers::Contains(path));
  return text;
}

using Catch::Matchers::Contains;

Bytes counting(size_t n) {
  Bytes bytes;
  for (size_t i = 0; i < n; ++i) bytes += static_cast<char>(i * 7);
  return bytes;
}

}  // namespace

TEST_CASE("an IDX file is read, compressed or not", "[data]") {
  const Folder folder;
  const Bytes file = idx({2, 3, 4}, counting(24));
  for (const auto& path : {folder.write("plain", file), folder.write("packed.gz", gzip(file))}) {
    const torch::Tensor tensor = dovetail::read_idx(path, 3);
    CHECK(tensor.sizes() == torch::IntArrayRef{2, 3, 4});
    CHECK(tensor.scalar_type() == torch::kByte);
    CHECK(tensor.flatten().equal((torch::arange(24) * 7).to(torch::kByte)));
  }
  CHECK(dovetail::read_idx(folder.write("none", idx({0}, "")), 1).numel() == 0);
}

TEST_CASE("a file that is missing, cut, or something else is refused", "[data]") {
  const Folder folder;
  const Bytes file = idx({2, 3, 4}, counting(24));
  CHECK_THAT(complaint_about(folder.path + "/absent", 3), Contains("No such file"));
  CHECK_THAT(complaint_about(folder.write("empty", ""), 3), Contains("expected 4 bytes of IDX header, found 0"));
  for (size_t length = 1; length < file.size(); ++length) {
    CAPTURE(length);
    CHECK_THAT(complaint_about(folder.write("cut", file.substr(0, length)), 3), Contains("before the end of the file"));
  }
  CHECK_THAT(complaint_about(folder.write("cut", file.substr(0, 30)), 3),
             Contains("expected 24 bytes for 2 x 3 x 4 elements, found 14"));
  CHECK_THAT(complaint_about(folder.write("long", file + "x"), 3), Contains("found more bytes"));
  CHECK_THAT(complaint_about(folder.write("labels", idx({4}, "abcd")), 3),
             Contains("expected the IDX magic number 00000803, found 00000801"));
  CHECK_THAT(complaint_about(folder.write("text", "<!DOCTYPE html>"), 1), Contains("found 3c21444f"));
  CHECK_THAT(complaint_about(folder.path, 3), Contains("the data file " + folder.path + " is a folder."));
  // A header that promises more than any memory has must not be believed.
  CHECK_THAT(complaint_about(folder.write("huge", idx({0xffffffff, 0xffffffff, 0xffffffff}, "")), 3),
             Contains("expected less than a terabyte"));
  CHECK_THAT(complaint_about(folder.write("large", idx({0xffffffff, 28, 2}, counting(24))), 3), Contains("found 24"));
}

TEST_CASE("damaged compressed data is refused at any length", "[data]") {
  const Folder folder;
  const Bytes packed = gzip(idx({2, 3, 40}, counting(240)));
  for (size_t length = 1; length < packed.size(); ++length) {
    CAPTURE(length);
    CHECK(complaint_about(folder.write("cut.gz", packed.substr(0, length)), 3) != "no error");
  }
  Bytes wrong = packed;
  wrong[packed.size() - 6] ^= 1;  // the checksum at the end
  CHECK_THAT(complaint_about(folder.write("wrong.gz", wrong), 3), Contains("damaged or cut"));
}

TEST_CASE("Fashion-MNIST complains about what is missing or does not fit", "[data]") {
  const Folder folder;
  try {
    FashionMNIST("");
    FAIL("an empty name is no folder");
  } catch (const dovetail::Error& error) {
    CHECK(error.code() == dovetail::ExitCode::arguments);
    CHECK_THAT(error.what(), Contains("the name of Fashion-MNIST's folder is empty"));
  }
  const FashionMNIST absent(folder.path);
  CHECK_THAT(complaint([&] { (void)absent.train_data(); }),
             Contains(folder.path + "/train-images-idx3-ubyte.gz is missing") &&
                 Contains("apt-get install dataset-fashion-mnist"));

  folder.write("train-images-idx3-ubyte", idx({2, 28, 28}, counting(2 * 28 * 28)));
  folder.write("train-labels-idx1-ubyte", idx({3}, {1, 2, 3}));
  CHECK_THAT(complaint([&] { (void)FashionMNIST(folder.path).train_data(); }), Contains("2 images and 3 labels"));
  folder.write("train-labels-idx1-ubyte", idx({2}, {1, 10}));
  CHECK_THAT(complaint([&] { (void)FashionMNIST(folder.path).train_data(); }),
             Contains("label 1") && Contains("is 10"));
  folder.write("train-images-idx3-ubyte", idx({2, 27, 28}, counting(2 * 27 * 28)));
  CHECK_THAT(complaint([&] { (void)FashionMNIST(folder.path).train_data(); }), Contains("27 x 28, expected 28 x 28"));
}

TEST_CASE("images are handed out normalised, in the order asked for", "[data]") {
  const Folder folder;
  folder.write("train-images-idx3-ubyte", idx({3, 28, 28}, counting(3 * 28 * 28)));
  folder.write("train-labels-idx1-ubyte", idx({3}, {4, 0, 9}));
  const FashionMNIST module(folder.path);
  CHECK(module.train_data().size() == 3);
  dovetail::Batch batch;
  module.train_data().fetch(std::vector<int64_t>{2, 0}, batch);
  CHECK(batch.data.sizes() == torch::IntArrayRef{2, 1, 28, 28});
  CHECK(batch.target.equal(torch::tensor({9, 4})));
  const auto pixels = (torch::arange(3 * 784) * 7).to(torch::kByte).to(torch::kFloat).view({3, 1, 28, 28});
  const auto expected = ((pixels / 255 - 0.2860) / 0.3530).index_select(0, torch::tensor({2, 0}));
  CHECK(batch.data.allclose(expected, 1e-5, 1e-6));
}

TEST_CASE("the installed Fashion-MNIST is what its paper says", "[data]") {
  const FashionMNIST module;
  if (!std::filesystem::exists(FashionMNIST::default_folder())) return;
  CHECK(module.train_data().size() == 60000);
  CHECK(module.validation_data().size() == 10000);
  std::vector<int64_t> all(60000);
  std::iota(all.begin(), all.end(), 0);
  dovetail::Batch batch;
  module.train_data().fetch(all, batch);
  CHECK(std::abs(batch.data.mean().item<double>()) < 1e-3);
  CHECK(std::abs(batch.data.std().item<double>() - 1) < 1e-3);
  CHECK(batch.target.bincount().equal(torch::full({10}, 6000)));
}
