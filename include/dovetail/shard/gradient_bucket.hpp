// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/communicator.hpp>
#include <dovetail/shard/flat_home.hpp>
#include <dovetail/shard/gradient_wire.hpp>
#include <dovetail/shard/storage_gate.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace dovetail {

/// Gradients of several parameters in one flat buffer, which is cut into one part for each rank and reduced at once.
class GradientBucket {
 public:
  /// @param like    tensors of the gradients' sizes and strides
  /// @param buffer  all gradients; its memory exists from the first that arrives until they are reduced, if `frees`
  /// @param main    this rank's part of the sum; may be part of the buffer if that stays
  /// @param wire    what is sent of the buffer
  GradientBucket(const std::vector<torch::Tensor>& like, FlatLayout layout, StorageGate buffer, torch::Tensor main,
                 GradientWire wire, bool frees)
      : layout_(std::move(layout)),
        buffer_(std::move(buffer)),
        main_(std::move(main)),
        wire_(std::move(wire)),
        frees_(frees),
        filled_(like.size(), false) {
    for (std::size_t i = 0; i < like.size(); ++i)
      places_.push_back(alias_like(buffer_.buffer(), layout_.offset(i), like[i]));
    if (frees_) buffer_.close();
  }

  /// A backward begins.
  /// @param anew  what came before is done with, else gradients are added to it
  void begin(bool anew) {
    arrived_ = 0;
    if (anew) std::fill(filled_.begin(), filled_.end(), false);
  }

  void take(std::size_t i, const torch::Tensor& gradient) {
    buffer_.open();
    if (filled_[i])
      places_[i].add_(gradient);
    else
      places_[i].copy_(gradient);
    filled_[i] = true;
    ++arrived_;
  }

  /// Has each tensor got its gradient in this backward?
  bool complete() const { return arrived_ >= filled_.size(); }

  /// Starts to sum over ranks into `main`, or to add the sum to it. What has no gradient counts as zero.
  void start_reduce(Communicator& comm, bool adds) {
    buffer_.open();
    int64_t end = 0;  // of what is filled
    for (std::size_t i = 0; i < filled_.size(); ++i) {
      zero(end, layout_.offset(i));
      if (!filled_[i]) places_[i].zero_();
      end = layout_.offset(i) + layout_.numel(i);
    }
    zero(end, layout_.size());
    const torch::Tensor& sent = wire_.load(buffer_.buffer());
    if (frees_ && wire_.rounds()) buffer_.close();
    pending_ = comm.reduce_scatter_async(main_, sent, adds);
    reducing_ = true;
  }

  void finish_reduce() {
    if (!std::exchange(reducing_, false)) return;
    pending_.wait();
    wire_.sent();
    if (frees_) buffer_.close();
  }

 private:
  void zero(int64_t begin, int64_t end) {
    if (begin < end) buffer_.buffer().narrow(0, begin, end - begin).zero_();
  }

  FlatLayout layout_;
  StorageGate buffer_;
  torch::Tensor main_;
  GradientWire wire_;
  bool frees_;
  std::vector<torch::Tensor> places_;
  std::vector<bool> filled_;
  std::size_t arrived_ = 0;
  Pending pending_;
  bool reducing_ = false;
};

}  // namespace dovetail
