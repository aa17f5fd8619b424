// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace dovetail {

/// Memory that is freed and needed again in every step: kept instead of given back, as the kernel hands out fresh pages
/// slowly. It never holds more than was ever in use at once.
class MemoryPool {
 public:
  /// A block of exactly this size; the content is undefined.
  c10::DataPtr take(std::size_t bytes, c10::Device device) {
    in_use_ += bytes;
    most_ = std::max(most_, in_use_);
    for (std::size_t i = free_.size(); i-- > 0;) {
      if (free_[i].bytes != bytes) continue;
      c10::DataPtr memory = std::move(free_[i].memory);
      free_.erase(free_.begin() + std::ptrdiff_t(i));
      free_bytes_ -= bytes;
      return memory;
    }
    shrink();
    const c10::DeviceGuard here(device);  // a GPU's allocator takes the current one
    return c10::GetAllocator(device.type())->allocate(bytes);
  }

  void give(c10::DataPtr memory, std::size_t bytes) {
    in_use_ -= bytes;
    free_bytes_ += bytes;
    free_.push_back({std::move(memory), bytes});
    shrink();
  }

  std::size_t in_use() const { return in_use_; }
  std::size_t most_in_use() const { return most_; }

 private:
  struct Block {
    c10::DataPtr memory;
    std::size_t bytes;
  };

  /// The block that was free for longest goes first.
  void shrink() {
    while (!free_.empty() && in_use_ + free_bytes_ > most_) {
      free_bytes_ -= free_.front().bytes;
      free_.erase(free_.begin());
    }
  }

  std::vector<Block> free_;
  std::size_t free_bytes_ = 0, in_use_ = 0, most_ = 0;
};

}  // namespace dovetail
