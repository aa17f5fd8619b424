// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include <dovetail/data/batch.hpp>
#include <dovetail/launch/error.hpp>

namespace dovetail {

/// Something with a number of samples that can put any of them into a batch. `fetch` fills `out.data` and `out.target`
/// with the samples of the given indices, in this order, and should use the storage it finds there again. It is called
/// with indices in [0, size()), never with none, and may be called for the same index more than once.
template <class D>
concept Dataset = requires(const D& dataset, std::span<const int64_t> indices, Batch& out) {
  { dataset.size() } -> std::convertible_to<int64_t>;
  dataset.fetch(indices, out);
};

/// Something that hands over data sets: `train_data()` and, if the fit should validate, `validation_data()`.
template <class D>
concept DataModule = requires(const D& module) {
  { module.train_data() } -> Dataset;
};

template <class D>
concept ValidatingDataModule = DataModule<D> && requires(const D& module) {
  { module.validation_data() } -> Dataset;
};

namespace detail {

/// Copies rows of `from` to consecutive rows of `to`, which gets the shape it needs. Plain copies instead of
/// index_select: no tensors are made, so a steady state allocates nothing.
inline void copy_rows(const torch::Tensor& from, std::span<const int64_t> rows, torch::Tensor& to) {
  c10::SmallVector<int64_t, 6> shape(from.sizes().begin(), from.sizes().end());
  shape[0] = static_cast<int64_t>(rows.size());
  shape_as(to, shape, from.scalar_type());
  const size_t bytes = from.size(0) == 0 ? 0 : from.nbytes() / static_cast<size_t>(from.size(0));
  const auto* source = static_cast<const char*>(from.const_data_ptr());
  auto* target = static_cast<char*>(to.mutable_data_ptr());
  for (const int64_t row : rows) {
    std::memcpy(target, source + static_cast<size_t>(row) * bytes, bytes);
    target += bytes;
  }
}

}  // namespace detail

/// A data set that is two tensors in memory: sample i is row i of both.
class TensorDataset {
 public:
  /// @throws Error(data) when the tensors have different numbers of rows, or none
  TensorDataset(const torch::Tensor& data, const torch::Tensor& target) {
    if (!data.defined() || !target.defined() || data.dim() == 0 || target.dim() == 0 ||
        data.size(0) != target.size(0)) {
      const auto rows = [](const torch::Tensor& t) {
        return !t.defined() ? "undefined" : t.dim() == 0 ? "a scalar" : std::to_string(t.size(0)) + " rows";
      };
      throw Error(ExitCode::data, "TensorDataset needs data and target with one row per sample, and was given " +
                                      rows(data) + " and " + rows(target) + ".");
    }
    data_ = data.detach().cpu().contiguous();
    target_ = target.detach().cpu().contiguous();
  }

  [[nodiscard]] int64_t size() const { return data_.size(0); }

  void fetch(std::span<const int64_t> indices, Batch& out) const {
    detail::copy_rows(data_, indices, out.data);
    detail::copy_rows(target_, indices, out.target);
  }

 private:
  torch::Tensor data_, target_;
};

/// A data module over data sets that exist already: `SplitData(train, validation)`, `TrainOnly(train)`.
template <Dataset Train, Dataset Validation = Train>
class SplitData {
 public:
  SplitData(Train train, Validation validation) : train_(std::move(train)), validation_(std::move(validation)) {}

  [[nodiscard]] const Train& train_data() const { return train_; }
  [[nodiscard]] const Validation& validation_data() const { return validation_; }

 private:
  Train train_;
  Validation validation_;
};

template <Dataset Train>
class TrainOnly {
 public:
  explicit TrainOnly(Train train) : train_(std::move(train)) {}

  [[nodiscard]] const Train& train_data() const { return train_; }

 private:
  Train train_;
};

}  // namespace dovetail
