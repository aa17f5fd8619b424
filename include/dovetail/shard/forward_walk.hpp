// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/unit_schedule.hpp>
#include <dovetail/shard/visit_agreement.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dovetail {

/// Goes through the visits of one forward in their agreed order: gathers, ahead of need too, and frees. A rank that has
/// no use for a visit makes it all the same. One that needs a unit which is not ahead in the list goes through to its
/// end and asks for it there. `Memory` is UnitsInMemory, or what only counts.
class ForwardWalk {
 public:
  explicit ForwardWalk(std::size_t units) : states_(units) {}

  template <class Memory>
  void begin(UnitSchedule& schedule, bool reshards, int prefetch, Memory& memory) {
    schedule_ = &schedule;
    reshards_ = reshards;
    prefetch_ = std::size_t(prefetch);
    cursor_ = issued_ = 0;
    appended_from_ = UnitSchedule::none;
    gather_ahead(memory);
  }

  /// The unit is about to run here. Returns its visit.
  template <class Memory>
  std::size_t reach(Memory& memory, int unit) {
    if (!states_[std::size_t(unit)].alive) go_to(memory, unit);
    return states_[std::size_t(unit)].visit;
  }

  /// Is this the first call on this rank since the unit is there?
  bool first_call(int unit) { return !std::exchange(states_[std::size_t(unit)].called, true); }

  void enter(int unit) { running_.push_back(unit); }
  void leave() {
    if (!running_.empty()) running_.pop_back();
  }
  bool is_running() const { return !running_.empty(); }
  bool is_running(int unit) const { return std::find(running_.begin(), running_.end(), unit) != running_.end(); }

  /// This rank's forward is over: makes what visits are left, and starts to ask whether some rank needs more.
  /// @param said  a number below 2^52 that is to be compared over the ranks
  template <class Memory>
  void end(Memory& memory, std::uint64_t said = 0) {
    while (cursor_ < visits().size()) step(memory);
    said_ = said;
    if (!states_.empty()) agreement_.start(memory.comm(), std::nullopt, said_);
  }

  /// To be called before the next collective after `end`: makes the visits that some rank asked for.
  template <class Memory>
  void settle(Memory& memory) {
    if (states_.empty()) return;
    for (auto more = agreement_.finish(); more; more = agreement_.agree(memory.comm(), std::nullopt, said_))
      append(memory, *more);
  }

  /// After `settle`: did all ranks say the same when they ended?
  bool said_the_same() const { return !states_.empty() && agreement_.said_the_same(); }

  /// The first visit that this forward appended.
  std::size_t appended_from() const { return appended_from_; }

  void forget() {
    states_.assign(states_.size(), State{});
    alive_.clear();
    running_.clear();
  }

 private:
  struct State {
    bool alive = false;     ///< in alive_
    bool called = false;    ///< on this rank, since it is alive
    std::size_t visit = 0;  ///< while alive
  };

  const std::vector<UnitVisit>& visits() const { return schedule_->visits(); }

  template <class Memory>
  void go_to(Memory& memory, int unit) {
    if (const std::size_t at = schedule_->next_of(unit, cursor_); at != UnitSchedule::none) {
      while (cursor_ <= at) step(memory);
      return;
    }
    while (cursor_ < visits().size()) step(memory);
    for (;;) {
      const UnitVisit next = *agreement_.agree(memory.comm(), UnitVisit{unit, int(running_.size())});
      append(memory, next);
      if (next.unit == unit) return;
    }
  }

  template <class Memory>
  void append(Memory& memory, UnitVisit visit) {
    appended_from_ = std::min(appended_from_, visits().size());
    schedule_->append(visit);
    step(memory);
  }

  template <class Memory>
  void step(Memory& memory) {
    const UnitVisit visit = visits()[cursor_];
    retire(memory, visit.depth);
    memory.gather(visit.unit);
    states_[std::size_t(visit.unit)] = {true, false, cursor_++};
    alive_.push_back(visit);
    gather_ahead(memory);
  }

  /// Visits at this depth and inside are over.
  template <class Memory>
  void retire(Memory& memory, int depth) {
    while (!alive_.empty() && alive_.back().depth >= depth) {
      const int unit = alive_.back().unit;
      if (reshards_ && is_running(unit)) refuse_nesting(memory, unit);
      alive_.pop_back();
      states_[std::size_t(unit)].alive = false;
      if (reshards_) memory.reshard(unit);
    }
  }

  template <class Memory>
  void gather_ahead(Memory& memory) {
    issued_ = std::max(issued_, cursor_);
    const std::size_t end = std::min(visits().size(), cursor_ + prefetch_);
    for (; issued_ < end; ++issued_)
      if (!memory.gather_ahead(visits()[issued_].unit, reshards_)) return;
  }

  template <class Memory>
  [[noreturn]] static void refuse_nesting(Memory& memory, int unit) {
    throw Error(ExitCode::ranks_disagree,
                "rank " + std::to_string(memory.comm().rank()) + " is inside of unit '" + memory.name(unit) +
                    "' while another rank calls units that are nested in another way. Nest units alike on all ranks.");
  }

  UnitSchedule* schedule_ = nullptr;
  bool reshards_ = true;
  std::size_t prefetch_ = 0;
  std::vector<State> states_;
  std::vector<int> running_;      // units whose forward this rank is in, outermost first
  std::vector<UnitVisit> alive_;  // visits that are not over, outermost first
  std::size_t cursor_ = 0;        // visits up to here have been made
  std::size_t issued_ = 0;        // gathers up to here have been started
  std::size_t appended_from_ = UnitSchedule::none;
  VisitAgreement agreement_;
  std::uint64_t said_ = 0;
};

}  // namespace dovetail
