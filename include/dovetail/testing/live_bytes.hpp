// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace dovetail::testing {

/// Counts the bytes of all tensors in CPU memory, by standing in front of LibTorch's allocator from its construction to
/// the end of the process. One per process, made before the tensors that are to be counted.
class LiveBytes final : public c10::Allocator {
 public:
  static LiveBytes& start() {
    static LiveBytes* const counter = new LiveBytes;  // tensors that outlive everything else still return here
    return *counter;
  }

  int64_t now() const { return live_; }
  int64_t peak() const { return peak_; }  ///< since the last reset
  void reset_peak() { peak_.store(live_); }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return before_->allocate(0);
    // What is remembered of a block lies in front of it: LibTorch may ask for it by nothing but its address.
    c10::DataPtr inner = before_->allocate(bytes + front);
    auto* const data = static_cast<std::byte*>(inner.get()) + front;
    new (data - front) Block{std::move(inner), int64_t(bytes)};
    add(int64_t(bytes));
    return {data, data, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  struct Block {
    c10::DataPtr inner;
    int64_t bytes;
  };
  static constexpr size_t front = 64;  // LibTorch's alignment
  static_assert(sizeof(Block) <= front);

  LiveBytes() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, /*priority=*/100); }

  static void give_back(void* data) {
    Block* const stored = reinterpret_cast<Block*>(static_cast<std::byte*>(data) - front);
    Block block = std::move(*stored);
    stored->~Block();
    start().add(-block.bytes);
  }

  void add(int64_t bytes) {
    const int64_t live = live_ += bytes;
    for (int64_t peak = peak_; live > peak && !peak_.compare_exchange_weak(peak, live);) {
    }
  }

  c10::Allocator* before_;
  std::atomic<int64_t> live_{0}, peak_{0};
};

}  // namespace dovetail::testing
