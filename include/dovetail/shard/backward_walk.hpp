// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/unit_schedule.hpp>
#include <dovetail/shard/units_in_memory.hpp>

#include <algorithm>
#include <vector>

namespace dovetail {

/// Goes through the steps of one backward in their order, never back: gathers, ahead of need too, frees and reduces. A
/// step that this rank has no use for is taken all the same, as the other ranks may have.
class BackwardWalk {
 public:
  /// @param adds to the gradients of earlier micro-batches, instead of beginning anew
  void begin(UnitSchedule& schedule, bool reshards, int prefetch, bool adds) {
    schedule_ = &schedule;
    steps_ = &schedule.backward();
    reshards_ = reshards;
    prefetch_ = std::size_t(prefetch);
    adds_ = adds;
    taken_ = gathers_taken_ = gathers_issued_ = 0;
    gathers_.clear();
    for (const BackwardStep& step : *steps_)
      if (step.kind == BackwardStep::Kind::gather) gathers_.push_back(schedule.visits()[step.visit].unit);
  }

  bool adds() const { return adds_; }
  bool has_finished(std::size_t visit) const { return schedule_->finish_at(visit) < taken_; }

  void to_gather(UnitsInMemory& memory, std::size_t visit) { go(memory, schedule_->gather_at(visit) + 1); }
  void to_finish(UnitsInMemory& memory, std::size_t visit) { go(memory, schedule_->finish_at(visit) + 1); }
  void to_end(UnitsInMemory& memory) { go(memory, steps_->size()); }

 private:
  void go(UnitsInMemory& memory, std::size_t end) {
    while (taken_ < end) {
      const BackwardStep step = (*steps_)[taken_++];
      const int unit = schedule_->visits()[step.visit].unit;
      if (step.kind == BackwardStep::Kind::gather)
        gather(memory, unit);
      else
        finish(memory, unit, step.reduces);
    }
  }

  void gather(UnitsInMemory& memory, int unit) {
    memory.gather(unit);
    gathers_issued_ = std::max(gathers_issued_, ++gathers_taken_);
    const std::size_t end = std::min(gathers_.size(), gathers_taken_ + prefetch_);
    for (; gathers_issued_ < end; ++gathers_issued_)
      if (!memory.gather_ahead(gathers_[gathers_issued_], reshards_)) return;
  }

  void finish(UnitsInMemory& memory, int unit, bool reduces) {
    if (reduces) memory.let_go(unit);
    if (reduces || reshards_) memory.release(unit);
    if (reduces) memory.unit(unit).reduce(memory.comm(), adds_);
  }

  UnitSchedule* schedule_ = nullptr;
  const std::vector<BackwardStep>* steps_ = nullptr;
  std::vector<int> gathers_;  // units, in the order of backward
  bool reshards_ = true, adds_ = false;
  std::size_t prefetch_ = 0;
  std::size_t taken_ = 0;                               // steps
  std::size_t gathers_taken_ = 0, gathers_issued_ = 0;  // the latter are ahead
};

}  // namespace dovetail
