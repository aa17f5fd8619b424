// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/flat_unit.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dovetail {

/// Units whose parameters are all frozen for now, so that backward has nothing to reduce of them.
class RestingUnits {
 public:
  void look_at(const std::vector<FlatUnit>& units) {
    resting_.clear();
    for (const FlatUnit& unit : units) resting_.push_back(!unit.trains());
  }

  /// Every unit is taken to train, as where ranks froze others.
  void none_rests() { resting_.assign(resting_.size(), false); }

  bool operator[](int unit) const { return resting_[std::size_t(unit)]; }
  const std::vector<bool>& all() const { return resting_; }

  /// For comparing ranks: 0 if no unit rests, below 2^52.
  std::uint64_t fingerprint() const {
    std::uint64_t hash = 0;
    for (std::size_t u = 0; u < resting_.size(); ++u)
      if (resting_[u]) hash = (hash + u + 1) * 0x9E3779B97F4A7C15;
    return hash >> 12;
  }

 private:
  std::vector<bool> resting_;
};

}  // namespace dovetail
