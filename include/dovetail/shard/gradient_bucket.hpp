// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/communicator.hpp>
#include <dovetail/shard/gradient_buffer.hpp>

#include <utility>
#include <vector>

namespace dovetail {

/// Who gets the sum of a bucket's gradients, and what becomes of the whole gradients that it was made of.
enum class Reduction {
  to_owners,             ///< each rank its part; the rest stays as it was
  to_owners_and_free,    ///< each rank its part; the whole is freed
  to_all,                ///< every rank all of it, in place of its own gradients
  to_all_in_rank_order,  ///< the same, summed in rank order, or sent in another format: to owners and on to all;
                         ///< a GPU's library sums fp32 in an order of its own, unless it is told not to
};

/// Gradients of several parameters that are reduced at once.
class GradientBucket {
 public:
  /// @param main  this rank's part of the sum; may be part of the buffer unless that is freed, and is where all get it
  GradientBucket(GradientBuffer buffer, torch::Tensor main, Reduction reduction)
      : buffer_(std::move(buffer)), main_(std::move(main)), reduction_(reduction) {
    if (frees()) buffer_.close();
  }

  /// A backward begins.
  /// @param anew      what came before is done with, else gradients are added to it
  /// @param expected  how many gradients will come, at most
  void begin(bool anew, std::size_t expected) {
    arrived_ = 0;
    came_.clear();
    expected_ = expected;
    if (anew) buffer_.forget();
  }

  void take(std::size_t i, const torch::Tensor& gradient) {
    buffer_.take(i, gradient);
    if (came_.size() <= i) came_.resize(i + 1, false);
    arrived_ += !came_[i];
    came_[i] = true;
  }

  /// Has each tensor that was to get a gradient got it in this backward?
  bool complete() const { return arrived_ >= expected_; }

  /// More may come in this window, and main gradients may be looked at until then.
  void fill() { buffer_.fill(); }

  /// Starts to sum over ranks. What has no gradient counts as zero.
  /// @param adds  the sum to that of earlier backwards, where it goes to owners
  void start_reduce(Communicator& comm, bool adds) {
    const torch::Tensor& sent = buffer_.finish(frees());
    pending_ =
        reduction_ == Reduction::to_all ? comm.all_reduce_async(sent) : comm.reduce_scatter_async(main_, sent, adds);
    reducing_ = true;
  }

  /// Waits for the sum of this rank's part, and starts to bring all parts together where every rank is to have them.
  void finish_reduce(Communicator& comm) {
    if (!std::exchange(reducing_, false)) return;
    pending_.wait();
    frees() ? buffer_.close() : buffer_.sent();
    if (reduction_ == Reduction::to_all_in_rank_order) pending_ = comm.all_gather_into_async(buffer_.whole(), main_);
  }

  void finish(Communicator& comm) {
    finish_reduce(comm);
    pending_.wait();
  }

 private:
  bool frees() const { return reduction_ == Reduction::to_owners_and_free; }

  GradientBuffer buffer_;
  torch::Tensor main_;
  Reduction reduction_;
  std::size_t arrived_ = 0, expected_ = 0;  // tensors, in this backward
  std::vector<bool> came_;                  // of each tensor, one gradient at least
  Pending pending_;
  bool reducing_ = false;
};

}  // namespace dovetail
