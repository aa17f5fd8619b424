// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/communicator.hpp>
#include <dovetail/shard/gradient_buffer.hpp>

#include <utility>

namespace dovetail {

/// What becomes of the whole gradients of a bucket once they are reduced: they stay as they are, their memory is freed,
/// or they become the sum on every rank.
enum class WholeGradients { stay, freed, summed };

/// Gradients of several parameters that are reduced at once, each rank getting its part of the sum.
class GradientBucket {
 public:
  /// @param main  this rank's part of the sum; may be part of the buffer unless that is freed, and is where it is
  /// summed
  GradientBucket(GradientBuffer buffer, torch::Tensor main, WholeGradients whole)
      : buffer_(std::move(buffer)), main_(std::move(main)), whole_(whole) {
    if (frees()) buffer_.close();
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

  /// More may come in this window, and main gradients may be looked at until then.
  void fill() { buffer_.fill(); }

  /// Starts to sum over ranks into `main`, or to add the sum to it. What has no gradient counts as zero.
  void start_reduce(Communicator& comm, bool adds) {
    pending_ = comm.reduce_scatter_async(main_, buffer_.finish(frees()), adds);
    reducing_ = true;
  }

  /// Waits for the sum of this rank's part, and starts to bring all parts together where every rank is to have them.
  void finish_reduce(Communicator& comm) {
    if (!std::exchange(reducing_, false)) return;
    pending_.wait();
    frees() ? buffer_.close() : buffer_.sent();
    if (whole_ == WholeGradients::summed) pending_ = comm.all_gather_into_async(buffer_.whole(), main_);
  }

  void finish(Communicator& comm) {
    finish_reduce(comm);
    pending_.wait();
  }

 private:
  bool frees() const { return whole_ == WholeGradients::freed; }

  GradientBuffer buffer_;
  torch::Tensor main_;
  WholeGradients whole_;
  std::size_t arrived_ = 0, expected_ = 0;  // in this backward
  Pending pending_;
  bool reducing_ = false;
};

}  // namespace dovetail
