// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/memory_pool.hpp>

#include <torch/types.h>

#include <memory>
#include <string>

namespace dovetail {

/// A flat tensor that has no memory: reading it throws an error with `text`, for every operator.
inline torch::Tensor without_memory(int64_t numel, const torch::TensorOptions& options, const std::string& text) {
  const c10::Device device = options.device();
  const std::size_t bytes = std::size_t(numel) * options.dtype().itemsize();
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(nullptr, device), nullptr, false);
  torch::Tensor tensor = torch::empty({0}, options);
  tensor.set_(storage, 0, {numel}, {1});
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(text);
  return tensor;
}

/// A buffer whose memory exists only between open() and close(). Views of it, and what autograd saved of them, stay
/// valid objects; reading one while the gate is closed throws an error with `text`, for every operator. Gates that
/// share a pool take their memory from it.
class StorageGate {
 public:
  StorageGate() = default;
  StorageGate(torch::Tensor buffer, std::string text, std::shared_ptr<MemoryPool> pool = nullptr)
      : buffer_(std::move(buffer)),
        text_(std::move(text)),
        bytes_(buffer_.storage().nbytes()),
        pool_(pool ? std::move(pool) : std::make_shared<MemoryPool>()) {}

  const torch::Tensor& buffer() const { return buffer_; }
  bool is_open() const { return open_; }
  std::size_t bytes() const { return bytes_; }  ///< while open

  /// Allocates; the contents are undefined. Nothing happens where it is open.
  void open() {
    if (open_) return;
    auto* storage = buffer_.storage().unsafeGetStorageImpl();
    storage->clear_data_ptr_access_error_msg_();
    storage->set_data_ptr_noswap(pool_->take(bytes_, buffer_.device()));
    storage->set_nbytes(bytes_);
    open_ = from_pool_ = true;
  }

  /// Frees, or gives back to the pool. Nothing happens where it is closed.
  void close() {
    if (!open_) return;
    auto* storage = buffer_.storage().unsafeGetStorageImpl();
    c10::DataPtr memory = storage->set_data_ptr(c10::DataPtr(nullptr, buffer_.device()));
    if (from_pool_) pool_->give(std::move(memory), bytes_);
    // Without the text some operators crash on freed memory instead of throwing. The size stays: an operator that takes
    // a view first would find it too small and say so, and nothing of what is wrong.
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(text_);
    open_ = false;
  }

  /// Reading throws with this text from now on, for c10d's threads too: no collective may be under way. The memory
  /// stays.
  void forbid(std::string text) {
    buffer_.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(text));
  }

 private:
  torch::Tensor buffer_;
  std::string text_;
  std::size_t bytes_ = 0;
  std::shared_ptr<MemoryPool> pool_;
  bool open_ = true, from_pool_ = false;
};

}  // namespace dovetail
