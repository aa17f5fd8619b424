// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/flat_unit.hpp>
#include <dovetail/shard/unit_nodes.hpp>
#include <dovetail/shard/unit_schedule.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

namespace dovetail {

/// Gathers, frees and reduces the units of one model.
///
/// Every rank issues the same collectives in the same order, whatever its forward does: all follow one agreed list of visits
/// (UnitSchedule), one list for training and one for evaluation. A rank that skips a unit takes part in its collectives when
/// it comes to a later one, or at the end, and adds zero to its gradient. A rank that needs a unit which is not ahead in the
/// list goes through to the list's end and asks for it there: at the end of every forward the ranks say in one collective of 8 bytes a
/// rank what more they need, until nobody needs anything, and what was asked for is appended to the list. The first forward
/// begins with an empty list. So the order of units may change from step to step, and from rank to rank, at the cost of
/// gathers that nobody needed; where the order stays there are none.
///
/// A unit is freed when the next one at its level is visited, not when its forward ends: calls in a row gather once, and the last
/// unit is still there when backward begins. Gathered at any time: the visited unit with those around it, and `prefetch` more.
class ShardedUnits {
 public:
  struct Options {
    bool reshard_after_forward = true;
    int prefetch = 1;
  };

  ShardedUnits(std::vector<FlatUnit> units, FlatUnit root, Communicator comm, Options options)
      : units_(std::move(units)), root_(std::move(root)), states_(units_.size()), comm_(std::move(comm)), options_(options) {}

  const std::vector<FlatUnit>& units() const { return units_; }
  const FlatUnit& root() const { return root_; }

  /// Each forward begins here. What an earlier one left behind, also by an exception, is dropped.
  void begin_forward(bool evaluates) {
    if (phase_ == Phase::forward && evaluates_ && !thrown_) finish_forward();
    drop();
    if (!std::exchange(root_gathered_, true)) {
      root_.start_gather(comm_);
      root_.finish_gather();
    }
    phase_ = Phase::forward;
    evaluates_ = evaluates;
    schedule().forget_before(std::exchange(forget_[evaluates_], 0));
    cursor_ = issued_ = 0;
    appended_from_ = UnitSchedule::none;
    prefetch_forward();
  }

  /// Every rank ends its forward here: gathers that only others need are taken part in.
  void finish_forward() {
    while (cursor_ < visits().size()) step_forward();
    while (!units_.empty()) {
      const auto more = agree(std::nullopt);
      if (!more) break;
      append(*more);
    }
    // An order that never repeats must not make the list grow for ever.
    if (appended_from_ != UnitSchedule::none && visits().size() > 8 * units_.size()) forget_[evaluates_] = appended_from_;
  }

  /// @param adds to the gradients of earlier micro-batches, instead of beginning anew
  void begin_backward(bool adds) {
    finish_forward();
    phase_ = Phase::backward;
    adds_ = adds;
    backward_cursor_ = gathers_passed_ = gathers_issued_ = 0;
    steps_ = &schedule().backward();
    backward_gathers_.clear();
    for (const BackwardStep& step : *steps_)
      if (step.kind == BackwardStep::Kind::gather) backward_gathers_.push_back(step.visit);
    root_.open_gradients();
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (states_[u].kept) units_[u].open_gradients();
      if (!adds && schedule().next_of(int(u), 0) == UnitSchedule::none) units_[u].forget_main();
    }
  }

  void end_backward() {
    while (backward_cursor_ < steps_->size()) step_backward();
    root_.reduce(comm_, adds_);
    drop();
  }

  /// Parameters have changed: what is gathered is stale.
  void invalidate() {
    drop();
    root_.release();
    root_gathered_ = false;
  }

  /// Gives the model its whole parameters back and takes no part in it any more.
  void restore() {
    if (phase_ == Phase::forward && evaluates_ && !thrown_) finish_forward();
    invalidate();
    for (FlatUnit& unit : units_)
      for (FlatSegment& segment : unit.segments()) segment.restore(comm_);
    for (FlatSegment& segment : root_.segments()) segment.restore(comm_);
    phase_ = Phase::over;
  }

  // What the units call.

  int64_t begin(int unit) {
    State& state = states_[std::size_t(unit)];
    if (phase_ == Phase::forward) {
      if (!state.alive) reach(unit);
    } else if (phase_ != Phase::over) {  // a forward that the loop does not know of, on all ranks alike
      gather(unit);
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
    if (phase_ == Phase::idle && !thrown && !called_again) release(unit);
  }

  void before_backward(int unit, int64_t pass) {
    State& state = states_[std::size_t(unit)];
    if (phase_ == Phase::over || pass < 0) return;
    check_generation(unit, pass);
    if (phase_ == Phase::forward) {  // a gradient inside the forward, which may itself be differentiated later
      if (!state.alive) reach(unit);
      state.kept = true;
      return;
    }
    const std::size_t visit = pass_of(pass).visit;
    if (schedule().finish_at(visit) < backward_cursor_) refuse_order(unit);
    while (backward_cursor_ <= schedule().gather_at(visit)) step_backward();
    units_[std::size_t(unit)].open_gradients();
  }

  void after_backward(int, int64_t pass) {
    if (phase_ != Phase::backward || pass < 0 || pass >> 32 != generation_ || !pass_of(pass).first) return;
    while (backward_cursor_ <= schedule().finish_at(pass_of(pass).visit)) step_backward();
  }

 private:
  enum class Phase { idle, forward, backward, over };

  struct State {
    bool gathered = false;   ///< by the schedule: the same on every rank
    bool in_flight = false;  ///< gathered ahead
    bool alive = false;      ///< in alive_
    bool kept = false;       ///< something outside the schedule may read it until its gradient is complete
    bool called = false;     ///< on this rank, since it is alive
    std::size_t visit = 0;   ///< while alive
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
      const UnitVisit next = *agree(UnitVisit{unit, int(running_.size())});
      append(next);
      if (next.unit == unit) return;
    }
  }

  void append(UnitVisit visit) {
    appended_from_ = std::min(appended_from_, visits().size());
    schedule().append(visit);
    step_forward();
  }

  /// What all ranks visit next, each wanting some visit or none. The innermost wish comes first, so that no unit is freed
  /// while it runs.
  std::optional<UnitVisit> agree(std::optional<UnitVisit> wish) {
    if (comm_.size() == 1) return wish;
    constexpr double width = 1 << 20;
    const double mine = wish ? wish->depth * width + (width - 1 - wish->unit) : -1;
    const auto all = comm_.all_gather(std::span<const double>(&mine, 1));
    const double most = *std::max_element(all.begin(), all.end());
    if (most < 0) return std::nullopt;
    const int depth = int(most / width);
    return UnitVisit{int(width - 1 - (most - depth * width)), depth};
  }

  void step_forward() {
    const UnitVisit visit = visits()[cursor_];
    retire(visit.depth);
    gather(visit.unit);
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
        throw Error(ExitCode::ranks_disagree, "rank " + std::to_string(comm_.rank()) + " is inside of unit '" + name(unit) +
                                                  "' while another rank calls units that are nested in another way. Nest units alike on all ranks.");
      alive_.pop_back();
      states_[std::size_t(unit)].alive = false;
      if (reshards()) release(unit);
    }
  }

  void prefetch_forward() {
    issued_ = std::max(issued_, cursor_);
    const std::size_t end = std::min(visits().size(), cursor_ + std::size_t(options_.prefetch));
    for (; issued_ < end; ++issued_)
      if (!start_ahead(visits()[issued_].unit)) return;
  }

  // ---- backward

  void step_backward() {
    const BackwardStep step = (*steps_)[backward_cursor_++];
    const int unit = visits()[step.visit].unit;
    if (step.kind == BackwardStep::Kind::gather) {
      gather(unit);
      ++gathers_passed_;
      prefetch_backward();
      return;
    }
    if (step.reduces) states_[std::size_t(unit)].kept = false;
    if (step.reduces || reshards()) release(unit);
    if (step.reduces) units_[std::size_t(unit)].reduce(comm_, adds_);
  }

  void prefetch_backward() {
    gathers_issued_ = std::max(gathers_issued_, gathers_passed_);
    const std::size_t end = std::min(backward_gathers_.size(), gathers_passed_ + std::size_t(options_.prefetch));
    for (; gathers_issued_ < end; ++gathers_issued_)
      if (!start_ahead(visits()[backward_gathers_[gathers_issued_]].unit)) return;
  }

  // ---- one unit

  void gather(int unit) {
    State& state = states_[std::size_t(unit)];
    if (state.gathered) return;
    if (!std::exchange(state.in_flight, false)) units_[std::size_t(unit)].start_gather(comm_);
    units_[std::size_t(unit)].finish_gather();
    state.gathered = true;
  }

  /// False where the unit is there now and will be freed before its turn: too early to gather it again.
  bool start_ahead(int unit) {
    State& state = states_[std::size_t(unit)];
    if (state.in_flight) return true;
    if (state.gathered) return !reshards();
    units_[std::size_t(unit)].start_gather(comm_);
    state.in_flight = true;
    return true;
  }

  void release(int unit) {
    State& state = states_[std::size_t(unit)];
    state.gathered = false;
    if (!state.kept) units_[std::size_t(unit)].release();
  }

  /// Nothing is gathered but the root, no gradient is open, nothing is remembered of passes.
  void drop() {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (states_[u].in_flight) units_[u].finish_gather();
      units_[u].release();
      units_[u].close_gradients();
      states_[u] = State{};
    }
    root_.close_gradients();
    alive_.clear();
    running_.clear();
    passes_.clear();
    ++generation_;
    thrown_ = false;
    phase_ = Phase::idle;
  }

  std::string name(int unit) const { return units_[std::size_t(unit)].name(); }

  void check_generation(int unit, int64_t pass) const {
    if (pass >> 32 == generation_) return;
    throw Error(ExitCode::user_code, "backward reached unit '" + name(unit) + "' through a forward of an earlier step, whose parameters are "
                                     "gone. Detach what you keep from one step to the next.");
  }

  [[noreturn]] void refuse_order(int unit) const {
    throw Error(ExitCode::user_code, "backward reached unit '" + name(unit) + "' after its gradient was sent to its owners: it does not go "
                                     "through the units in the reverse order of their forward. Make one unit of them.");
  }

  std::vector<FlatUnit> units_;
  FlatUnit root_;
  std::vector<State> states_;
  Communicator comm_;
  Options options_;

  Phase phase_ = Phase::idle;
  bool evaluates_ = false, thrown_ = false, root_gathered_ = false;
  std::vector<int> running_;  // units whose forward this rank is in, outermost first
  std::vector<Pass> passes_;  // of this forward
  int64_t generation_ = 0;    // number of the forward

  std::array<UnitSchedule, 2> schedules_;  // of training, of evaluation
  std::size_t cursor_ = 0;                 // visits up to here have been made
  std::size_t issued_ = 0;                 // gathers up to here have been started
  std::size_t appended_from_ = UnitSchedule::none;
  std::array<std::size_t, 2> forget_{};    // visits before this one, when the next forward begins
  std::vector<UnitVisit> alive_;  // visits that are not over, outermost first

  bool adds_ = false;
  const std::vector<BackwardStep>* steps_ = nullptr;
  std::vector<std::size_t> backward_gathers_;  // visits, in the order of backward
  std::size_t backward_cursor_ = 0, gathers_passed_ = 0, gathers_issued_ = 0;
};

/// One unit's end of ShardedUnits.
class ShardedUnitRuntime final : public UnitRuntime {
 public:
  ShardedUnitRuntime(std::shared_ptr<ShardedUnits> all, int unit) : all_(std::move(all)), unit_(unit) {}
  int64_t begin() override { return all_->begin(unit_); }
  void end(bool thrown) noexcept override { all_->end(unit_, thrown); }
  void before_backward(int64_t pass) override { all_->before_backward(unit_, pass); }
  void after_backward(int64_t pass) override { all_->after_backward(unit_, pass); }

 private:
  std::shared_ptr<ShardedUnits> all_;
  int unit_;
};

}  // namespace dovetail
