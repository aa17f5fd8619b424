// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/communicator.hpp>
#include <dovetail/core/group_sizes.hpp>
#include <dovetail/shard/gather_states.hpp>

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

  PlannedUnits(std::vector<std::vector<Segment>> units, std::vector<Segment> root, GroupSizes ranks, int max_gathered)
      : units_(std::move(units)),
        root_(std::move(root)),
        gathers_(units_.size(), max_gathered),
        sliced_(units_.size(), false),
        ranks_(ranks) {}

  const CommunicationCounts& counts() const { return counts_; }
  std::int64_t most_gathered() const { return most_; }

  void gather_root() { start(root_, false); }
  void reduce_root() { reduce(root_); }

  void gather(int unit) {
    if (gathers_.need(std::size_t(unit)) == GatherStates::Is::away) start(std::size_t(unit));
  }
  bool gather_ahead(int unit, bool will_be_released) {
    const auto ahead = gathers_.need_later(std::size_t(unit), will_be_released);
    if (ahead == GatherStates::Ahead::start) start(std::size_t(unit));
    return ahead != GatherStates::Ahead::too_early;
  }
  void release(int unit) {
    if (!gathers_.release(std::size_t(unit))) return;
    for (const Segment& segment : units_[std::size_t(unit)]) now_ -= segment.gathered;
  }
  void reshard(int unit) {
    if (ranks_.reshard == 1) return release(unit);
    if (!gathers_.release(std::size_t(unit))) return;
    for (const Segment& segment : units_[std::size_t(unit)]) {
      hold(slice(segment));
      now_ -= segment.gathered;
    }
    sliced_[std::size_t(unit)] = true;
  }
  void reduce(int unit, bool) { reduce(units_[std::size_t(unit)]); }
  void owe(int) {}
  void let_go(int) {}

  void release_all() {
    for (std::size_t u = 0; u < units_.size(); ++u) release(int(u));
  }

  /// A collective of so many bytes in whole, over so many ranks.
  void count(Collective collective, std::int64_t bytes, int ranks) { counts_.plan(collective, bytes, ranks); }

  // Asked for by walks that meet what was not planned.
  std::string name(int unit) const { return std::to_string(unit); }
  Communicator& comm() { return alone_; }

 private:
  std::int64_t slice(const Segment& segment) const { return segment.gathered / ranks_.reshard; }
  void hold(std::int64_t bytes) { most_ = std::max(most_, now_ += bytes); }

  void start(std::size_t unit) {
    start(units_[unit], sliced_[unit]);
    sliced_[unit] = false;
  }
  void start(const std::vector<Segment>& segments, bool from_slices) {
    for (const Segment& segment : segments) {
      count(Collective::all_gather, segment.gathered, from_slices ? ranks_.reshard : ranks_.shard);
      hold(segment.gathered);
      if (from_slices) now_ -= slice(segment);
    }
  }
  void reduce(const std::vector<Segment>& segments) {
    for (const Segment& segment : segments) count(Collective::reduce_scatter, segment.reduced, ranks_.shard);
  }

  std::vector<std::vector<Segment>> units_;
  std::vector<Segment> root_;
  GatherStates gathers_;
  std::vector<bool> sliced_;
  GroupSizes ranks_;
  Communicator alone_;
  CommunicationCounts counts_;
  std::int64_t now_ = 0, most_ = 0;
};

}  // namespace dovetail
