// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/storage_gate.hpp>

#include <memory>
#include <utility>

namespace dovetail {

/// What is sent of a buffer of gradients: the buffer itself, or, where they travel in another format, each element
/// rounded to it once. The rounded copy exists only while it is sent.
class GradientWire {
 public:
  GradientWire() = default;
  GradientWire(const torch::Tensor& gradients, torch::ScalarType format, std::shared_ptr<MemoryPool> pool)
      : rounds_(format != gradients.scalar_type()) {
    if (!rounds_) return;
    rounded_ = StorageGate(torch::empty(gradients.sizes(), gradients.options().dtype(format)),
                           "gradients are read after they were sent.", std::move(pool));
    rounded_.close();
  }

  /// Is a rounded copy sent, so that the buffer itself may be freed at once?
  bool rounds() const { return rounds_; }

  const torch::Tensor& load(const torch::Tensor& gradients) {
    if (!rounds_) return gradients;
    rounded_.open();
    rounded_.buffer().copy_(gradients);
    return rounded_.buffer();
  }
  void sent() {
    if (rounds_) rounded_.close();
  }

 private:
  bool rounds_ = false;
  StorageGate rounded_;
};

}  // namespace dovetail
