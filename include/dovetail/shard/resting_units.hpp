// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/fingerprint.hpp>
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

  /// Of the units that rest.
  std::uint64_t fingerprint() const {
    Fingerprint resting;
    for (std::size_t u = 0; u < resting_.size(); ++u)
      if (resting_[u]) resting.add(u);
    return resting.value();
  }

 private:
  std::vector<bool> resting_;
};

}  // namespace dovetail
