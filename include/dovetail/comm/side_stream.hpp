// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <memory>
#include <utility>

namespace dovetail::detail {

/// The stream of `device` to which the calling thread gives its work.
[[nodiscard]] inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// Work on a side stream, and the tensors that it reads and writes. They are held until a stream that may free or
/// change them waits for its end. That makes lifetimes a matter of references and events alone: the allocator need not
/// be told of a second stream (recordStream), which would keep memory for as long as the host runs ahead.
class DeviceWork {
 public:
  DeviceWork(c10::Device device, torch::Tensor one, torch::Tensor other)
      : end_(device.type()), device_(device), one_(std::move(one)), other_(std::move(other)) {}
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;
  /// Dropped: memory must still outlive the work.
  ~DeviceWork() {
    try {
      wait();
    } catch (...) {  // the device failed, and whoever uses it next is told
    }
  }

  /// Lets the calling thread's current stream wait; the host goes on.
  void wait() {
    if (!std::exchange(waiting_, false)) return;
    end_.block(current_stream(device_));
    one_ = other_ = torch::Tensor();
  }

 private:
  friend class SideStream;
  c10::Event end_;
  c10::Device device_;
  torch::Tensor one_, other_;
  bool waiting_ = true;
};

/// A stream of its own beside the one that computes: what it is given runs there in order, while the current stream
/// goes on with what it was given. Written on c10's streams and events, so for any kind of device.
class SideStream {
 public:
  explicit SideStream(c10::Device device)
      : device_(device),
        stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
        begin_(device.type()) {}

  [[nodiscard]] const c10::Stream& stream() const { return stream_; }

  /// Calls `body` with this stream as the current one, after everything that the current stream was given so far.
  /// Memory that `body` allocates belongs to this stream; what it touches besides must be held by `one` and `other`, or
  /// by the caller until the work has been waited for.
  template <class Body>
  [[nodiscard]] std::unique_ptr<DeviceWork> run(Body&& body, torch::Tensor one = {}, torch::Tensor other = {}) {
    begin_.record(current_stream(device_));
    begin_.block(stream_);
    auto work = std::make_unique<DeviceWork>(device_, std::move(one), std::move(other));
    try {
      const c10::StreamGuard on(stream_);
      body();
    } catch (...) {
      work->end_.record(stream_);  // part of it may run
      throw;
    }
    work->end_.record(stream_);
    return work;
  }

 private:
  c10::Device device_;
  c10::Stream stream_;
  c10::Event begin_;  // recorded anew each time: who waited for an earlier record has it
};

}  // namespace dovetail::detail
