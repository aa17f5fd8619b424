// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/backward_walk.hpp>
#include <dovetail/shard/unit_nodes.hpp>
#include <dovetail/shard/unit_schedule.hpp>
#include <dovetail/shard/units_in_memory.hpp>
#include <dovetail/shard/visit_agreement.hpp>

#include <algorithm>
#include <array>
#include <string>

namespace dovetail {

/// Gathers, frees and reduces the units of one model.
///
/// Every rank issues the same collectives in the same order, whatever its forward does: all follow one agreed list of
/// visits (UnitSchedule), one list for training and one for evaluation. A rank that skips a unit takes part in its
/// collectives when it comes to a later one, or at the end, and adds zero to its gradient. A rank that needs a unit
/// which is not ahead in the list goes through to the list's end and asks for it there: at the end of every forward the
/// ranks say in one collective of 8 bytes a rank what more they need, until nobody needs anything, and what was asked
/// for is appended to the list. The first forward begins with an empty list. So the order of units may change from step
/// to step, and from rank to rank, at the cost of gathers that nobody needed; where the order stays there are none.
///
/// A unit is freed when the next one at its level is visited, not when its forward ends: calls in a row gather once,
/// and the last unit is still there when backward begins. Gathered at any time: the visited unit with those around it,
/// and `prefetch` more.
class ShardedUnits {
 public:
  struct Options {
    bool reshard_after_forward = true;
    int prefetch = 1;
  };

  ShardedUnits(std::vector<FlatUnit> units, FlatUnit root, Communicator comm, Options options)
      : memory_(std::move(units), std::move(root), std::move(comm)),
        states_(memory_.units().size()),
        options_(options) {}

  const std::vector<FlatUnit>& units() const { return memory_.units(); }
  const FlatUnit& root() const { return memory_.root(); }

  /// Each forward begins here. What an earlier one left behind, also by an exception, is dropped.
  void begin_forward(bool evaluates) {
    if (phase_ == Phase::forward && evaluates_ && !thrown_) finish_forward();
    drop();
    memory_.gather_root();
    phase_ = Phase::forward;
    evaluates_ = evaluates;
    schedule().forget_before(std::exchange(forget_[evaluates_], 0));
    cursor_ = issued_ = 0;
    appended_from_ = UnitSchedule::none;
    prefetch_forward();
  }

  /// Every rank ends its forward here: gathers that only others need are taken part in. Backward does it by itself.
  void finish_forward() {
    while (cursor_ < visits().size()) step_forward();
    while (!states_.empty()) {
      const auto more = agree_on_visit(memory_.comm(), std::nullopt);
      if (!more) break;
      append(*more);
    }
    // An order that never repeats must not make the list grow for ever.
    const bool appended = appended_from_ != UnitSchedule::none;
    if (appended && visits().size() > 8 * states_.size()) forget_[evaluates_] = appended_from_;
    phase_ = Phase::idle;
  }

  /// @param adds to the gradients of earlier micro-batches, instead of beginning anew
  void begin_backward(bool adds) {
    if (phase_ == Phase::forward) finish_forward();
    phase_ = Phase::backward;
    walk_.begin(schedule(), reshards(), options_.prefetch, adds);
    memory_.root().open_gradients();
    for (int u = 0; u < int(states_.size()); ++u) {
      if (memory_.is_kept(u)) memory_.unit(u).open_gradients();
      if (!adds && schedule().next_of(u, 0) == UnitSchedule::none) memory_.unit(u).forget_main();
    }
  }

  void end_backward() {
    walk_.to_end(memory_);
    memory_.root().reduce(memory_.comm(), walk_.adds());
    drop();
  }

  /// Parameters have changed: what is gathered is stale.
  void invalidate() {
    drop();
    memory_.release_root();
  }

  /// Gives the model its whole parameters back and takes no part in it any more.
  void restore() {
    if (phase_ == Phase::forward && evaluates_ && !thrown_) finish_forward();
    invalidate();
    memory_.restore();
    phase_ = Phase::over;
  }

  // What the units call.

  int64_t begin(int unit) {
    State& state = states_[std::size_t(unit)];
    if (phase_ == Phase::forward) {
      if (!state.alive) reach(unit);
    } else if (phase_ != Phase::over) {  // a forward that the loop does not know of, on all ranks alike
      memory_.gather(unit);
    }
    running_.push_back(unit);
    if (phase_ != Phase::forward || evaluates_) return -1;
    passes_.push_back({state.visit, !std::exchange(state.called, true)});
    return generation_ << 32 | int64_t(passes_.size() - 1);
  }

  void end(int unit, bool thrown) noexcept {
    thrown_ |= thrown;
    if (!running_.empty()) running_.pop_back();
    const bool called_again = std::find(running_.begin(), running_.end(), unit) != running_.end();
    if (phase_ == Phase::idle && !thrown && !called_again) memory_.release(unit);
  }

  void before_backward(int unit, int64_t pass) {
    State& state = states_[std::size_t(unit)];
    if (phase_ == Phase::over || pass < 0) return;
    check_generation(unit, pass);
    if (phase_ == Phase::forward) {  // a gradient inside the forward, which may itself be differentiated later
      if (!state.alive) reach(unit);
      memory_.keep(unit);
      return;
    }
    const std::size_t visit = pass_of(pass).visit;
    if (walk_.has_finished(visit)) refuse_order(unit);
    walk_.to_gather(memory_, visit);
    memory_.unit(unit).open_gradients();
  }

  void after_backward(int, int64_t pass) {
    if (phase_ != Phase::backward || pass < 0 || pass >> 32 != generation_ || !pass_of(pass).first) return;
    walk_.to_finish(memory_, pass_of(pass).visit);
  }

 private:
  enum class Phase { idle, forward, backward, over };

  struct State {
    bool alive = false;     ///< in alive_
    bool called = false;    ///< on this rank, since it is alive
    std::size_t visit = 0;  ///< while alive
  };
  struct Pass {
    std::size_t visit;
    bool first;  ///< of the calls in this visit: backward leaves the visit there
  };

  UnitSchedule& schedule() { return schedules_[evaluates_]; }
  const std::vector<UnitVisit>& visits() { return schedule().visits(); }
  bool reshards() const { return options_.reshard_after_forward || evaluates_; }
  const Pass& pass_of(int64_t pass) const { return passes_[std::size_t(pass & 0xffffffff)]; }

  // ---- forward

  /// Goes on to the next visit of the unit.
  void reach(int unit) {
    if (const std::size_t at = schedule().next_of(unit, cursor_); at != UnitSchedule::none) {
      while (cursor_ <= at) step_forward();
      return;
    }
    while (cursor_ < visits().size()) step_forward();
    for (;;) {
      const UnitVisit next = *agree_on_visit(memory_.comm(), UnitVisit{unit, int(running_.size())});
      append(next);
      if (next.unit == unit) return;
    }
  }

  void append(UnitVisit visit) {
    appended_from_ = std::min(appended_from_, visits().size());
    schedule().append(visit);
    step_forward();
  }

  void step_forward() {
    const UnitVisit visit = visits()[cursor_];
    retire(visit.depth);
    memory_.gather(visit.unit);
    State& state = states_[std::size_t(visit.unit)];
    state.alive = true;
    state.called = false;
    state.visit = cursor_++;
    alive_.push_back(visit);
    prefetch_forward();
  }

  /// Visits at this depth and inside are over.
  void retire(int depth) {
    while (!alive_.empty() && alive_.back().depth >= depth) {
      const int unit = alive_.back().unit;
      if (reshards() && std::find(running_.begin(), running_.end(), unit) != running_.end())
        throw Error(
            ExitCode::ranks_disagree,
            "rank " + std::to_string(memory_.comm().rank()) + " is inside of unit '" + name(unit) +
                "' while another rank calls units that are nested in another way. Nest units alike on all ranks.");
      alive_.pop_back();
      states_[std::size_t(unit)].alive = false;
      if (reshards()) memory_.release(unit);
    }
  }

  void prefetch_forward() {
    issued_ = std::max(issued_, cursor_);
    const std::size_t end = std::min(visits().size(), cursor_ + std::size_t(options_.prefetch));
    for (; issued_ < end; ++issued_)
      if (!memory_.gather_ahead(visits()[issued_].unit, reshards())) return;
  }

  /// Nothing is gathered but the root, no gradient is open, nothing is remembered of passes.
  void drop() {
    memory_.drop();
    states_.assign(states_.size(), State{});
    alive_.clear();
    running_.clear();
    passes_.clear();
    ++generation_;
    thrown_ = false;
    phase_ = Phase::idle;
  }

  std::string name(int unit) const { return memory_.unit(unit).name(); }

  void check_generation(int unit, int64_t pass) const {
    if (pass >> 32 == generation_) return;
    throw Error(ExitCode::user_code,
                "backward reached unit '" + name(unit) +
                    "' through a forward of an earlier step, whose parameters are gone. Detach what "
                    "you keep from one step to the next.");
  }

  [[noreturn]] void refuse_order(int unit) const {
    throw Error(ExitCode::user_code,
                "backward reached unit '" + name(unit) +
                    "' after its gradient was sent to its owners: it does not go through the units in "
                    "the reverse order of their forward. Make one unit of them.");
  }

  UnitsInMemory memory_;
  std::vector<State> states_;
  Options options_;

  Phase phase_ = Phase::idle;
  bool evaluates_ = false, thrown_ = false;
  std::vector<int> running_;  // units whose forward this rank is in, outermost first
  std::vector<Pass> passes_;  // of this forward
  int64_t generation_ = 0;    // number of the forward

  std::array<UnitSchedule, 2> schedules_;  // of training, of evaluation
  std::size_t cursor_ = 0;                 // visits up to here have been made
  std::size_t issued_ = 0;                 // gathers up to here have been started
  std::size_t appended_from_ = UnitSchedule::none;
  std::array<std::size_t, 2> forget_{};  // visits before this one, when the next forward begins
  std::vector<UnitVisit> alive_;         // visits that are not over, outermost first

  BackwardWalk walk_;
};

}  // namespace dovetail
