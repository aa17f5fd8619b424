// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <dovetail/data/dataset.hpp>
#include <dovetail/data/sampler.hpp>

namespace dovetail {

/// Fills one batch after the other from a data set, always into the same storage. Used alike for training (shuffled)
/// and validation (in order).
template <Dataset D>
class Loader {
 public:
  /// `dataset` is kept by reference and must live as long as the loader.
  /// @throws Error(arguments, data) as Sampler
  Loader(const D& dataset, int rank, int world_size, const SamplerOptions& options)
      : dataset_(&dataset), sampler_(dataset.size(), rank, world_size, options) {
    indices_.reserve(static_cast<std::size_t>(std::min(sampler_.batch_size(), sampler_.samples())));
  }

  [[nodiscard]] const Sampler& sampler() const { return sampler_; }

  /// Micro-batches per epoch; the same on all ranks.
  [[nodiscard]] std::int64_t batches() const { return sampler_.batches(); }

  /// Micro-batch `index` of `epoch`, this rank's part. Valid until the next load. A rank without samples gets one
  /// padding sample, so that it runs the same program as the others: `batch.samples()` is 0 then.
  Batch& load(std::int64_t epoch, std::int64_t index) {
    sampler_.indices(epoch, index, indices_);
    const bool empty = indices_.empty();
    if (empty) indices_.push_back(0);
    dataset_->fetch(indices_, batch_);
    check_rows();
    batch_.padding = empty ? 1 : 0;
    return batch_;
  }

 private:
  void check_rows() const {
    const auto asked = static_cast<int64_t>(indices_.size());
    const bool fits = batch_.data.defined() && batch_.data.dim() > 0 && batch_.data.size(0) == asked;
    if (fits) return;
    throw Error(ExitCode::data, "the data set was asked for " + std::to_string(asked) + " samples, and fetch gave " +
                                    (!batch_.data.defined()   ? "undefined data"
                                     : batch_.data.dim() == 0 ? "a scalar"
                                                              : std::to_string(batch_.data.size(0)) + " rows") +
                                    ": data must have one row per sample, in the order of the indices.");
  }

  const D* dataset_;
  Sampler sampler_;
  std::vector<std::int64_t> indices_;
  Batch batch_;
};

}  // namespace dovetail
