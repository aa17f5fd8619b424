// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <dovetail/data/sampler.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

namespace {

using dovetail::Error;
using dovetail::ExitCode;
using dovetail::Permutation;
using dovetail::Sampler;

using Indices = std::vector<std::int64_t>;

Indices permuted(std::int64_t n, std::uint64_t seed, std::uint64_t epoch) {
  const Permutation order(n, seed, epoch);
  Indices all;
  for (std::int64_t i = 0; i < n; ++i) all.push_back(order(i));
  return all;
}

Indices zero_to(std::int64_t n) {
  Indices all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// The order of one epoch as the ranks see it together: their parts in rank order, batch after batch.
Indices dealt(std::int64_t n, int ranks, std::int64_t batch_size, std::int64_t epoch, bool shuffle = true) {
  Indices all, mine;
  std::set<std::int64_t> batches;
  for (int r = 0; r < ranks; ++r)
    batches.insert(Sampler(n, r, ranks, {.batch_size = batch_size, .shuffle = shuffle}).batches());
  REQUIRE(batches.size() == 1);  // every rank takes part in the same number of micro-batches
  for (std::int64_t b = 0; b < *batches.begin(); ++b) {
    std::int64_t together = 0;
    for (int r = 0; r < ranks; ++r) {
      const Sampler sampler(n, r, ranks, {.batch_size = batch_size, .shuffle = shuffle});
      sampler.indices(epoch, b, mine);
      CHECK(static_cast<std::int64_t>(mine.size()) == sampler.slice(b).size());
      CHECK(static_cast<std::int64_t>(mine.size()) <= batch_size);
      together += static_cast<std::int64_t>(mine.size());
      all.insert(all.end(), mine.begin(), mine.end());
    }
    CHECK(together == Sampler(n, 0, ranks, {.batch_size = batch_size}).global_slice(b).size());
    if (b + 1 < *batches.begin()) CHECK(together == ranks * batch_size);  // only the last one may be short
    CHECK(together > 0);
  }
  return all;
}

}  // namespace

TEST_CASE("a permutation has every index once, for any size", "[data]") {
  for (std::int64_t n = 0; n <= 300; ++n) {
    Indices all = permuted(n, 7, 3);
    std::sort(all.begin(), all.end());
    CHECK(all == zero_to(n));
  }
  for (const std::int64_t n : {1009, 4096, 4097, 65537}) {
    Indices all = permuted(n, 1, 0);
    std::sort(all.begin(), all.end());
    CHECK(all == zero_to(n));
  }
}

TEST_CASE("a permutation depends on seed and epoch, and is the same anywhere", "[data]") {
  CHECK(permuted(100, 1, 0) == permuted(100, 1, 0));
  std::set<Indices> seen;
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    for (std::uint64_t epoch = 0; epoch < 20; ++epoch) seen.insert(permuted(100, seed, epoch));
  CHECK(seen.size() == 400);
  CHECK(seen.count(zero_to(100)) == 0);
  // Written down, so that a change that would break the resumption of old runs does not pass.
  CHECK(permuted(10, 1, 0) == Indices{0, 2, 4, 7, 5, 6, 3, 9, 1, 8});
}

TEST_CASE("a permutation is spread evenly", "[data]") {
  // Where does index 0 end up? Over 8000 epochs each of 16 cells expects 500; 37.7 is the 0.1 % bound of chi square
  // with 15 degrees of freedom. The same for the pair at positions 0 and 1 in order or not.
  for (const std::int64_t n : {16, 23, 60}) {
    std::vector<double> cells(static_cast<std::size_t>(n), 0.0);
    int rising = 0;
    for (std::uint64_t epoch = 0; epoch < 8000; ++epoch) {
      const Permutation order(n, 5, epoch);
      cells[static_cast<std::size_t>(order(0))] += 1;
      rising += order(0) < order(1);
    }
    const double expected = 8000.0 / static_cast<double>(n);
    double chi_square = 0;
    for (const double count : cells) chi_square += (count - expected) * (count - expected) / expected;
    const double freedom = static_cast<double>(n) - 1;
    CAPTURE(n, chi_square, rising);
    CHECK(chi_square < freedom + 4 * std::sqrt(2 * freedom) + 6);
    CHECK(std::abs(rising - 4000) < 4 * 45);  // four standard deviations
  }
}

TEST_CASE("every sample comes once per epoch, in the same order for every number of ranks", "[data]") {
  for (const std::int64_t n : {1, 2, 3, 5, 7, 31, 97, 101}) {
    for (const std::int64_t batch_size : {1, 2, 3, 8}) {
      const Indices order = dealt(n, 1, batch_size, 2);
      CHECK(order == permuted(n, 1, 2));
      for (const int ranks : {2, 3, 4, 5, 8}) CHECK(dealt(n, ranks, batch_size, 2) == order);
    }
    CHECK(dealt(n, 3, 2, 0, false) == zero_to(n));
  }
  CHECK(dealt(101, 3, 4, 0) != dealt(101, 3, 4, 1));
}

TEST_CASE("in a short tail some ranks have fewer samples, or none", "[data]") {
  const auto sizes = [](std::int64_t n, int ranks, std::int64_t batch_size, std::int64_t batch) {
    Indices all;
    for (int r = 0; r < ranks; ++r) all.push_back(Sampler(n, r, ranks, {.batch_size = batch_size}).slice(batch).size());
    return all;
  };
  CHECK(sizes(20, 4, 4, 0) == Indices{4, 4, 4, 4});
  CHECK(sizes(20, 4, 4, 1) == Indices{4, 0, 0, 0});
  CHECK(sizes(23, 4, 4, 1) == Indices{4, 3, 0, 0});
  CHECK(sizes(2, 4, 1, 0) == Indices{1, 1, 0, 0});  // fewer samples than ranks
  CHECK(Sampler(23, 0, 4, {.batch_size = 4}).batches() == 2);
  CHECK(Sampler(16, 0, 4, {.batch_size = 4}).batches() == 1);
}

TEST_CASE("a last batch that is not full on every rank can be dropped", "[data]") {
  const auto dropping = [](std::int64_t n, int ranks) {
    return Sampler(n, 0, ranks, {.batch_size = 4, .drop_last = true}).batches();
  };
  CHECK(dropping(23, 1) == 5);
  CHECK(dropping(24, 1) == 6);
  CHECK(dropping(23, 2) == 2);
  CHECK(dropping(8, 2) == 1);
  try {
    dropping(7, 2);
    FAIL("nothing was left, and nobody said so");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::data);
    CHECK(error.what() == std::string("drop_last leaves nothing: the data set has 7 samples, a batch of all ranks 8; "
                                      "lower batch_size or keep the last batch."));
  }
}

TEST_CASE("an empty data set and a batch size below one are refused", "[data]") {
  const auto complaint = [](std::int64_t n, std::int64_t batch_size) -> std::pair<ExitCode, std::string> {
    try {
      Sampler(n, 0, 1, {.batch_size = batch_size});
    } catch (const Error& error) {
      return {error.code(), error.what()};
    }
    return {ExitCode::done, ""};
  };
  CHECK(complaint(0, 4).first == ExitCode::data);
  CHECK_THAT(complaint(0, 4).second, Catch::Matchers::Contains("the data set is empty"));
  for (const std::int64_t bad : {0, -3}) {
    CHECK(complaint(10, bad).first == ExitCode::arguments);
    CHECK_THAT(complaint(10, bad).second, Catch::Matchers::Contains("batch_size is " + std::to_string(bad)));
  }
  CHECK(complaint(1, 1).first == ExitCode::done);
}
