// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/data/loader.hpp>

namespace dovetail {

/// What the loop sees of a data set: numbered micro-batches, this rank's part of each.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual int64_t samples() const = 0;                    ///< of all ranks together
  virtual int64_t batches() const = 0;                    ///< per epoch, the same on all ranks
  virtual Batch& load(int64_t epoch, int64_t batch) = 0;  ///< valid until the next call
};

template <Dataset D>
class BatchSourceOf final : public BatchSource {
 public:
  BatchSourceOf(D dataset, int rank, int world_size, const SamplerOptions& options)
      : dataset_(std::move(dataset)), loader_(dataset_, rank, world_size, options) {}
  BatchSourceOf(const BatchSourceOf&) = delete;
  BatchSourceOf& operator=(const BatchSourceOf&) = delete;

  int64_t samples() const override { return loader_.sampler().samples(); }
  int64_t batches() const override { return loader_.batches(); }
  Batch& load(int64_t epoch, int64_t batch) override { return loader_.load(epoch, batch); }

 private:
  D dataset_;
  Loader<D> loader_;
};

/// What fit may be given as data: hands over a source for training and, where there is one, for validation.
class DataHooks {
 public:
  virtual ~DataHooks() = default;
  virtual std::unique_ptr<BatchSource> training(int rank, int world_size, const SamplerOptions& options) = 0;
  virtual std::unique_ptr<BatchSource> validation(int rank, int world_size,
                                                  const SamplerOptions& options) = 0;  ///< may be null
  virtual std::unique_ptr<BatchSource> evaluation(int rank, int world_size,
                                                  const SamplerOptions& options) = 0;  ///< may be null
};

/// A data module, or one data set, which then is for training in fit and for evaluation in validate.
template <class Data>
class DataAdapter final : public DataHooks {
 public:
  explicit DataAdapter(Data& data) : data_(data) {}

  std::unique_ptr<BatchSource> training(int rank, int world_size, const SamplerOptions& options) override {
    if constexpr (DataModule<Data>)
      return make(data_.train_data(), rank, world_size, options);
    else
      return make(data_, rank, world_size, options);
  }
  std::unique_ptr<BatchSource> validation(int rank, int world_size, const SamplerOptions& options) override {
    if constexpr (ValidatingDataModule<Data>)
      return make(data_.validation_data(), rank, world_size, options);
    else
      return nullptr;
  }
  std::unique_ptr<BatchSource> evaluation(int rank, int world_size, const SamplerOptions& options) override {
    if constexpr (DataModule<Data>)
      return validation(rank, world_size, options);
    else
      return make(data_, rank, world_size, options);
  }

 private:
  template <class D>
  static std::unique_ptr<BatchSource> make(D dataset, int rank, int world_size, const SamplerOptions& options) {
    return std::make_unique<BatchSourceOf<D>>(std::move(dataset), rank, world_size, options);
  }

  Data& data_;
};

}  // namespace dovetail
