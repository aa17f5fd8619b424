// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <dovetail/data/loader.hpp>

#include <string>
#include <vector>

namespace {

using dovetail::Batch;
using dovetail::Error;
using dovetail::ExitCode;
using dovetail::Loader;
using dovetail::SamplerOptions;
using dovetail::TensorDataset;

/// Rows 10 i, 10 i + 1, 10 i + 2 with target i.
TensorDataset numbered(int64_t n) {
  const auto index = torch::arange(n);
  return {(index.view({-1, 1}) * 10 + torch::arange(3)).to(torch::kFloat), index};
}

}  // namespace

static_assert(dovetail::Dataset<TensorDataset>);
static_assert(dovetail::DataModule<dovetail::SplitData<TensorDataset>>);
static_assert(dovetail::ValidatingDataModule<dovetail::SplitData<TensorDataset>>);
static_assert(dovetail::DataModule<dovetail::TrainOnly<TensorDataset>>);
static_assert(!dovetail::ValidatingDataModule<dovetail::TrainOnly<TensorDataset>>);
static_assert(!dovetail::Dataset<Batch>);

TEST_CASE("a loader fills batches with the sampler's samples", "[data]") {
  const TensorDataset data = numbered(11);
  for (int rank = 0; rank < 2; ++rank) {
    Loader loader(data, rank, 2, SamplerOptions{.batch_size = 3, .seed = 4});
    REQUIRE(loader.batches() == 2);
    for (int64_t b = 0; b < loader.batches(); ++b) {
      const Batch& batch = loader.load(1, b);
      std::vector<int64_t> expected;
      loader.sampler().indices(1, b, expected);
      REQUIRE(batch.size() == static_cast<int64_t>(expected.size()));
      CHECK(batch.samples() == batch.size());
      CHECK(batch.target.equal(torch::tensor(expected)));
      CHECK(batch.data.equal((batch.target.view({-1, 1}) * 10 + torch::arange(3)).to(torch::kFloat)));
    }
  }
}

TEST_CASE("a rank without samples gets a padding sample that does not count", "[data]") {
  const TensorDataset data = numbered(2);
  Loader loader(data, 2, 3, SamplerOptions{.batch_size = 1});
  const Batch& batch = loader.load(0, 0);
  CHECK(batch.size() == 1);
  CHECK(batch.padding == 1);
  CHECK(batch.samples() == 0);
  CHECK(batch.data.sizes() == torch::IntArrayRef{1, 3});
}

TEST_CASE("a data set that gives other rows than it was asked for is refused", "[data]") {
  struct Rows {
    torch::Tensor gives;
    int64_t size() const { return 8; }
    void fetch(std::span<const int64_t>, dovetail::Batch& out) const { out.data = out.target = gives; }
  };
  const auto refusal = [](torch::Tensor gives) -> std::string {
    const Rows rows{std::move(gives)};
    dovetail::Loader<Rows> loader(rows, 0, 1, {.batch_size = 4});
    try {
      loader.load(0, 0);
    } catch (const dovetail::Error& error) {
      CHECK(error.code() == dovetail::ExitCode::data);
      return error.what();
    }
    return "";
  };
  CHECK(refusal(torch::ones({4, 2})) == "");
  CHECK_THAT(refusal(torch::ones({3, 2})), Catch::Matchers::Contains("asked for 4 samples, and fetch gave 3 rows"));
  CHECK_THAT(refusal(torch::ones({})), Catch::Matchers::Contains("fetch gave a scalar"));
  CHECK_THAT(refusal({}), Catch::Matchers::Contains("fetch gave undefined data"));
}

TEST_CASE("a batch keeps its storage through full and short batches", "[data]") {
  const TensorDataset data = numbered(20);
  Loader loader(data, 0, 1, SamplerOptions{.batch_size = 6});
  const void* memory = loader.load(0, 0).data.const_data_ptr();
  const void* target_memory = loader.load(0, 0).target.const_data_ptr();
  int short_batches = 0;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (int64_t b = 0; b < loader.batches(); ++b) {
      const Batch& batch = loader.load(epoch, b);
      CHECK(batch.data.const_data_ptr() == memory);
      CHECK(batch.target.const_data_ptr() == target_memory);
      short_batches += batch.size() == 2;
    }
  }
  CHECK(short_batches == 3);
}

TEST_CASE("a data set refuses data and targets that do not belong together", "[data]") {
  const auto complaint = [](const torch::Tensor& data, const torch::Tensor& target) -> std::string {
    try {
      TensorDataset(data, target);
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::data);
      return error.what();
    }
    return "no error";
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(complaint(torch::zeros({3, 2}), torch::zeros({4})), Contains("3 rows and 4 rows"));
  CHECK_THAT(complaint(torch::zeros({}), torch::zeros({1})), Contains("a scalar and 1 rows"));
  CHECK_THAT(complaint(torch::Tensor(), torch::zeros({1})), Contains("undefined and 1 rows"));
  CHECK(complaint(torch::zeros({0, 2}), torch::zeros({0})) == "no error");  // the sampler refuses it
  const TensorDataset empty(torch::zeros({0, 2}), torch::zeros({0}));
  CHECK_THROWS_AS(Loader(empty, 0, 1, SamplerOptions{}), Error);
}

TEST_CASE("rows of any dtype and stride are copied", "[data]") {
  const TensorDataset data(torch::arange(24).view({4, 6}).t(), torch::arange(6).to(torch::kBFloat16));
  Batch batch;
  data.fetch(std::vector<int64_t>{5, 0, 5}, batch);
  CHECK(batch.data.equal(torch::arange(24).view({4, 6}).t().index_select(0, torch::tensor({5, 0, 5}))));
  CHECK(batch.target.equal(torch::tensor({5, 0, 5}).to(torch::kBFloat16)));
}
