// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace dovetail {

/// Which units are whole on a rank, or on their way there. It decides which gathers are started, so it is the same on
/// every rank at the same point of the agreed order.
class GatherStates {
 public:
  enum class Is { away, in_flight, whole };
  enum class Ahead { start, done, too_early };

  /// @param most  gathers ahead of need are started only while fewer units than that are not away; 0: no limit
  GatherStates(std::size_t units, int most) : states_(units, Is::away), most_(most) {}

  Is of(std::size_t unit) const { return states_[unit]; }

  /// The unit is needed. Returns what it was until now.
  Is need(std::size_t unit) { return become(unit, Is::whole); }

  /// The unit will be needed. Too early where it is whole now and will have been released by then, or where too many
  /// are.
  Ahead need_later(std::size_t unit, bool will_be_released) {
    if (states_[unit] == Is::whole) return will_be_released ? Ahead::too_early : Ahead::done;
    if (states_[unit] == Is::in_flight) return Ahead::done;
    if (most_ > 0 && here_ >= most_) return Ahead::too_early;
    become(unit, Is::in_flight);
    return Ahead::start;
  }

  /// The unit is not needed now. Was it whole?
  bool release(std::size_t unit) { return states_[unit] == Is::whole && become(unit, Is::away) == Is::whole; }

  /// Whatever it was, which is returned, it goes.
  Is drop(std::size_t unit) { return become(unit, Is::away); }

 private:
  Is become(std::size_t unit, Is now) {
    here_ += (now != Is::away) - (states_[unit] != Is::away);
    return std::exchange(states_[unit], now);
  }

  std::vector<Is> states_;
  int most_, here_ = 0;  // the latter are not away
};

}  // namespace dovetail
