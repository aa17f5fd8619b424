// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/communicator.hpp>
#include <dovetail/shard/gradient_buffer.hpp>

#include <utility>

namespace dovetail {

/// Gradients of several parameters that are reduced at once, each rank getting its part of the sum.
class GradientBucket {
 public:
  /// @param main   this rank's part of the sum; may be part of the buffer if that stays
  /// @param frees  the buffer's memory, once it is reduced
  GradientBucket(GradientBuffer buffer, torch::Tensor main, bool frees)
      : buffer_(std::move(buffer)), main_(std::move(main)), frees_(frees) {
    if (frees_) buffer_.close();
  }

  /// A backward begins.
  /// @param anew      what came before is done with, else gradients are added to it
  /// @param expected  how many gradients will come, at most
  void begin(bool anew, std::size_t expected) {
    arrived_ = 0;
    expected_ = expected;
    if (anew) buffer_.forget();
  }

  void take(std::size_t i, const torch::Tensor& gradient) {
    buffer_.take(i, gradient);
    ++arrived_;
  }

  /// Has each tensor that was to get a gradient got it in this backward?
  bool complete() const { return arrived_ >= expected_; }

  /// Starts to sum over ranks into `main`, or to add the sum to it. What has no gradient counts as zero.
  void start_reduce(Communicator& comm, bool adds) {
    pending_ = comm.reduce_scatter_async(main_, buffer_.finish(frees_), adds);
    reducing_ = true;
  }

  void finish_reduce() {
    if (!std::exchange(reducing_, false)) return;
    pending_.wait();
    frees_ ? buffer_.close() : buffer_.sent();
  }

 private:
  GradientBuffer buffer_;
  torch::Tensor main_;
  bool frees_;
  std::size_t arrived_ = 0, expected_ = 0;  // in this backward
  Pending pending_;
  bool reducing_ = false;
};

}  // namespace dovetail
