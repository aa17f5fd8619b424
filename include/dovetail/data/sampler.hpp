// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <dovetail/data/permutation.hpp>
#include <dovetail/launch/error.hpp>

namespace dovetail {

/// A range of positions in the order of an epoch.
struct Slice {
  std::int64_t first = 0;
  std::int64_t last = 0;  ///< one behind the end

  [[nodiscard]] constexpr std::int64_t size() const { return last - first; }
};

/// How an epoch is dealt: see Sampler.
struct SamplerOptions {
  std::int64_t batch_size = 32;  ///< per rank
  std::uint64_t seed = 1;
  bool shuffle = true;     ///< else 0, 1, 2, ... in every epoch
  bool drop_last = false;  ///< leave out a last micro-batch that is not full on every rank
};

/// Deals samples to ranks by arithmetic: no state, nothing to store, any position can be resumed at.
///
/// The order of an epoch is one permutation for all ranks. Global micro-batch b is the positions from b*W*B on, for W
/// ranks and batch size B per rank; rank r's part starts at b*W*B + r*B and has B positions, cut at the end of the
/// data. So every index comes exactly once per epoch, the concatenation of the parts in rank order is the same order
/// for every number of ranks, and only in the last micro-batch do some ranks have fewer samples, or none.
class Sampler {
 public:
  /// @throws Error(arguments) for a batch size below 1, Error(data) for a data set without samples, or without one full
  /// batch of all ranks where a smaller one is dropped
  Sampler(std::int64_t samples, int rank, int world_size, const SamplerOptions& options)
      : n_(samples), batch_size_(options.batch_size), rank_(rank), ranks_(world_size), options_(options) {
    if (batch_size_ < 1 || batch_size_ > std::numeric_limits<std::int32_t>::max()) {
      throw Error(ExitCode::arguments,
                  "batch_size is " + std::to_string(batch_size_) + ", expected at least one sample per rank.");
    }
    if (n_ < 1) throw Error(ExitCode::data, "the data set is empty; there is nothing to train on or to validate with.");
    if (batches() == 0) {
      throw Error(ExitCode::data, "drop_last leaves nothing: the data set has " + std::to_string(n_) +
                                      " samples, a batch of all ranks " + std::to_string(ranks_ * batch_size_) +
                                      "; lower batch_size or keep the last batch.");
    }
  }

  [[nodiscard]] std::int64_t samples() const { return n_; }
  [[nodiscard]] std::int64_t batch_size() const { return batch_size_; }

  /// Micro-batches per epoch; the same on all ranks.
  [[nodiscard]] std::int64_t batches() const {
    const std::int64_t width = ranks_ * batch_size_;
    return options_.drop_last ? n_ / width : (n_ + width - 1) / width;
  }

  /// This rank's positions in global micro-batch `batch`; may be empty in the last one.
  [[nodiscard]] Slice slice(std::int64_t batch) const {
    const std::int64_t first = std::min(n_, (batch * ranks_ + rank_) * batch_size_);
    return {first, std::min(n_, first + batch_size_)};
  }

  /// All ranks' positions in global micro-batch `batch`.
  [[nodiscard]] Slice global_slice(std::int64_t batch) const {
    const std::int64_t first = std::min(n_, batch * ranks_ * batch_size_);
    return {first, std::min(n_, first + ranks_ * batch_size_)};
  }

  /// Writes this rank's sample indices for micro-batch `batch` of `epoch`; allocates only where `out` is too small.
  void indices(std::int64_t epoch, std::int64_t batch, std::vector<std::int64_t>& out) const {
    const Slice mine = slice(batch);
    out.resize(static_cast<std::size_t>(mine.size()));
    if (!options_.shuffle) {
      for (std::int64_t i = mine.first; i < mine.last; ++i) out[static_cast<std::size_t>(i - mine.first)] = i;
      return;
    }
    const Permutation order(n_, options_.seed, static_cast<std::uint64_t>(epoch));
    for (std::int64_t i = mine.first; i < mine.last; ++i) out[static_cast<std::size_t>(i - mine.first)] = order(i);
  }

 private:
  std::int64_t n_;
  std::int64_t batch_size_;
  std::int64_t rank_;
  std::int64_t ranks_;
  SamplerOptions options_;
};

}  // namespace dovetail
