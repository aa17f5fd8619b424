// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dovetail {

/// The calls of units in one forward, by numbers that are used for no other forward.
class ForwardPasses {
 public:
  struct Pass {
    std::size_t visit;
    bool first;  ///< of the calls in this visit: backward leaves the visit there
  };

  std::int64_t add(Pass pass) {
    passes_.push_back(pass);
    return forward_ << 32 | std::int64_t(passes_.size() - 1);
  }

  /// Is it one of this forward?
  bool has(std::int64_t number) const { return number >= 0 && number >> 32 == forward_; }
  const Pass& operator[](std::int64_t number) const { return passes_[std::size_t(number & 0xffffffff)]; }

  /// The forward is over.
  void forget() {
    passes_.clear();
    ++forward_;
  }

 private:
  std::vector<Pass> passes_;
  std::int64_t forward_ = 0;
};

}  // namespace dovetail
