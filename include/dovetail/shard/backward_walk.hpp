// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/unit_schedule.hpp>

#include <algorithm>
#include <vector>

namespace dovetail {

/// Goes through the steps of one backward in their order, never back: gathers, ahead of need too, frees and reduces. A
/// step that this rank has no use for is taken all the same, as the other ranks may have. `Memory` is UnitsInMemory, or
/// what only counts.
class BackwardWalk {
 public:
  /// @param reduces  else gradients stay whole, for a later backward of the window to reduce
  /// @param adds     to what was reduced of earlier micro-batches, instead of beginning anew
  void begin(UnitSchedule& schedule, bool reshards, int prefetch, bool reduces, bool adds) {
    schedule_ = &schedule;
    steps_ = &schedule.backward();
    reshards_ = reshards;
    prefetch_ = std::size_t(prefetch);
    reduces_ = reduces;
    adds_ = adds;
    taken_ = gathers_taken_ = gathers_issued_ = 0;
    gathers_.clear();
    for (const BackwardStep& step : *steps_)
      if (step.kind == BackwardStep::Kind::gather) gathers_.push_back(schedule.visits()[step.visit].unit);
  }

  bool has_finished(std::size_t visit) const { return schedule_->finish_at(visit) < taken_; }

  template <class Memory>
  void to_gather(Memory& memory, std::size_t visit) {
    go(memory, schedule_->gather_at(visit) + 1);
  }
  template <class Memory>
  void to_finish(Memory& memory, std::size_t visit) {
    go(memory, schedule_->finish_at(visit) + 1);
  }
  template <class Memory>
  void to_end(Memory& memory) {
    go(memory, steps_->size());
  }

 private:
  template <class Memory>
  void go(Memory& memory, std::size_t end) {
    while (taken_ < end) {
      const BackwardStep step = (*steps_)[taken_++];
      const int unit = schedule_->visits()[step.visit].unit;
      if (step.kind == BackwardStep::Kind::gather)
        gather(memory, unit);
      else
        finish(memory, unit, step.reduces);
    }
  }

  template <class Memory>
  void gather(Memory& memory, int unit) {
    memory.gather(unit);
    gathers_issued_ = std::max(gathers_issued_, ++gathers_taken_);
    const std::size_t end = std::min(gathers_.size(), gathers_taken_ + prefetch_);
    for (; gathers_issued_ < end; ++gathers_issued_)
      if (!memory.gather_ahead(gathers_[gathers_issued_], reshards_)) return;
  }

  template <class Memory>
  void finish(Memory& memory, int unit, bool last_visit) {
    if (!last_visit) {
      if (reshards_) memory.reshard(unit);
      return;
    }
    memory.let_go(unit);
    if (reshards_ || reduces_) memory.release(unit);
    if (reduces_)
      memory.reduce(unit, adds_);
    else
      memory.owe(unit);
  }

  UnitSchedule* schedule_ = nullptr;
  const std::vector<BackwardStep>* steps_ = nullptr;
  std::vector<int> gathers_;  // units, in the order of backward
  bool reshards_ = true, reduces_ = true, adds_ = false;
  std::size_t prefetch_ = 0;
  std::size_t taken_ = 0;                               // steps
  std::size_t gathers_taken_ = 0, gathers_issued_ = 0;  // the latter are ahead
};

}  // namespace dovetail
