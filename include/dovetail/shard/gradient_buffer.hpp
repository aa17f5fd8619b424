// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/launch/error.hpp>
#include <dovetail/shard/flat_home.hpp>
#include <dovetail/shard/gradient_wire.hpp>
#include <dovetail/shard/storage_gate.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace dovetail {

/// Whole gradients of several parameters in one flat buffer, from the first that arrives until they have been reduced.
/// One that comes first is copied to its place, later ones are added; zero is only what nothing came for.
class GradientBuffer {
 public:
  /// @param like    tensors of the gradients' sizes and strides
  /// @param buffer  of layout.size() elements
  /// @param whose   "the parameters 'a', 'b'", for messages
  /// @param wire    what is sent of the buffer
  GradientBuffer(const std::vector<torch::Tensor>& like, FlatLayout layout, StorageGate buffer, std::string whose,
                 GradientWire wire)
      : layout_(std::move(layout)),
        buffer_(std::move(buffer)),
        wire_(std::move(wire)),
        whose_(std::move(whose)),
        filled_(like.size(), false) {
    for (std::size_t i = 0; i < like.size(); ++i)
      places_.push_back(alias_like(buffer_.buffer(), layout_.offset(i), like[i]));
  }

  std::size_t bytes() const { return buffer_.is_open() ? buffer_.bytes() : 0; }
  const torch::Tensor& whole() const { return buffer_.buffer(); }

  /// @throws Error(user_code) between `finish` and `forget`
  void take(std::size_t i, const torch::Tensor& gradient) {
    if (finished_)
      throw Error(ExitCode::user_code,
                  "a gradient of " + whose_ +
                      " came too late, after gradients were sent: add up the losses "
                      "of a micro-batch and run backward once.");
    buffer_.open();
    if (filled_[i])
      places_[i].add_(gradient);
    else
      places_[i].copy_(gradient);
    filled_[i] = true;
  }

  /// What nothing has come for is zero from now on. Nothing happens where the buffer has no memory.
  void fill() {
    if (!buffer_.is_open()) return;
    int64_t end = 0;  // of what is filled
    for (std::size_t i = 0; i < filled_.size(); ++i) {
      zero(end, layout_.offset(i));
      if (!filled_[i]) places_[i].zero_();
      filled_[i] = true;
      end = layout_.offset(i) + layout_.numel(i);
    }
    zero(end, layout_.size());
  }

  /// No more come: what is to be sent, the buffer as a whole or a copy of it in another format.
  /// @param frees  the buffer, where the copy stands for it
  const torch::Tensor& finish(bool frees) {
    finished_ = true;
    buffer_.open();
    fill();
    const torch::Tensor& sent = wire_.load(buffer_.buffer());
    if (frees && wire_.rounds()) buffer_.close();
    return sent;
  }

  /// What was to be sent is sent.
  void sent() { wire_.sent(); }

  /// Frees all memory. What was finished stays finished.
  void close() {
    sent();
    buffer_.close();
  }

  /// What came before is done with.
  void forget() {
    finished_ = false;
    std::fill(filled_.begin(), filled_.end(), false);
  }

 private:
  void zero(int64_t begin, int64_t end) {
    if (begin < end) buffer_.buffer().narrow(0, begin, end - begin).zero_();
  }

  FlatLayout layout_;
  StorageGate buffer_;
  GradientWire wire_;
  std::string whose_;
  std::vector<torch::Tensor> places_;
  std::vector<bool> filled_;
  bool finished_ = false;
};

}  // namespace dovetail
