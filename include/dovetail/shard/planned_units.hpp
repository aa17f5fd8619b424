// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/communicator.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace dovetail {

/// Stands for UnitsInMemory where a step is only counted: the same walks go over it, nothing is moved.
class PlannedUnits {
 public:
  /// What one collective moves, in bytes of the whole tensor, padding included.
  struct Segment {
    std::int64_t gathered, reduced;
  };

  PlannedUnits(std::vector<std::vector<Segment>> units, std::vector<Segment> root, int ranks)
      : units_(std::move(units)), root_(std::move(root)), states_(units_.size()), ranks_(ranks) {}

  const CommunicationCounts& counts() const { return counts_; }
  std::int64_t most_gathered() const { return most_; }

  void gather_root() { start(root_); }
  void reduce_root() { reduce(root_); }

  void gather(int unit) {
    State& s = states_[std::size_t(unit)];
    if (!s.gathered && !std::exchange(s.in_flight, false)) start(units_[std::size_t(unit)]);
    s.gathered = true;
  }
  bool gather_ahead(int unit, bool will_be_released) {
    State& s = states_[std::size_t(unit)];
    if (s.in_flight) return true;
    if (s.gathered) return !will_be_released;
    start(units_[std::size_t(unit)]);
    return s.in_flight = true;
  }
  void release(int unit) {
    State& s = states_[std::size_t(unit)];
    if (std::exchange(s.gathered, false))
      for (const Segment& segment : units_[std::size_t(unit)]) now_ -= segment.gathered;
  }
  void reduce(int unit, bool) { reduce(units_[std::size_t(unit)]); }
  void owe(int) {}
  void let_go(int) {}

  void release_all() {
    for (std::size_t u = 0; u < units_.size(); ++u) release(int(u));
  }

  /// A collective of so many bytes in whole.
  void count(Collective collective, std::int64_t bytes) {
    if (ranks_ > 1 && bytes > 0) counts_.add(collective, bytes_sent(collective, bytes, ranks_));
  }

  // Asked for by walks that meet what was not planned.
  std::string name(int unit) const { return std::to_string(unit); }
  Communicator& comm() { return alone_; }

 private:
  struct State {
    bool gathered = false, in_flight = false;
  };

  void start(const std::vector<Segment>& segments) {
    for (const Segment& segment : segments) {
      count(Collective::all_gather, segment.gathered);
      now_ += segment.gathered;
    }
    most_ = std::max(most_, now_);
  }
  void reduce(const std::vector<Segment>& segments) {
    for (const Segment& segment : segments) count(Collective::reduce_scatter, segment.reduced);
  }

  std::vector<std::vector<Segment>> units_;
  std::vector<Segment> root_;
  std::vector<State> states_;
  int ranks_;
  Communicator alone_;
  CommunicationCounts counts_;
  std::int64_t now_ = 0, most_ = 0;
};

}  // namespace dovetail
