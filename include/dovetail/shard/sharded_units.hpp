// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/backward_walk.hpp>
#include <dovetail/shard/forward_passes.hpp>
#include <dovetail/shard/forward_walk.hpp>
#include <dovetail/shard/resting_units.hpp>
#include <dovetail/shard/unit_nodes.hpp>
#include <dovetail/shard/unit_schedule.hpp>
#include <dovetail/shard/units_in_memory.hpp>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

namespace dovetail {

/// Gathers, frees and reduces the units of one model.
///
/// Every rank issues the same collectives in the same order, whatever its forward does: all follow one agreed list of
/// visits (UnitSchedule), one list for training and one for evaluation. A rank that skips a unit takes part in its
/// collectives when it comes to a later one, or at the end, and adds zero to its gradient. A rank that needs a unit
/// which is not ahead in the list goes through to the list's end and asks for it there: at the end of every forward the
/// ranks say in one collective of 8 bytes a rank what more they need, until nobody needs anything, and what was asked
/// for is appended to the list. That collective is under way while backward begins. The first forward begins with an
/// empty list. So the order of units may change from step to step, and from rank to rank, at the cost of gathers that
/// nobody needed; where the order stays there are none.
///
/// A unit is freed when the next one at its level is visited, not when its forward ends: calls in a row gather once,
/// and the last unit is still there when backward begins. Gathered at any time: the visited unit with those around it,
/// and `prefetch` more.
class ShardedUnits {
 public:
  struct Options {
    bool reshard_after_forward = true;
    int prefetch = 1;
    int max_gathered = 0;
  };

  ShardedUnits(std::vector<FlatUnit> units, FlatUnit root, UnitRanks ranks, Options options)
      : memory_(std::move(units), std::move(root), std::move(ranks), options.max_gathered),
        options_(options),
        forward_(memory_.units().size()) {}

  const std::vector<FlatUnit>& units() const { return memory_.units(); }
  const FlatUnit& root() const { return memory_.root(); }

  bool is_at_rest() const { return phase_ != Phase::forward && phase_ != Phase::backward && !forward_.is_running(); }

  /// Before somebody else makes parameters whole: nothing is gathered any more, no reduction is under way.
  UnitsInMemory& rest() {
    finish_reductions();
    memory_.drop_within_window(/*frees_parameters=*/true);
    memory_.release_root();
    return memory_;
  }
  /// Has somebody else some unit (-1: the root) whole, so that it needs no gathering?
  bool is_whole() const { return !whole_.empty(); }
  void set_whole(int unit, bool whole) { whole ? void(whole_.insert(unit)) : void(whole_.erase(unit)); }

  /// Each forward begins here. What an earlier one left behind, also by an exception, is dropped.
  /// @param goes_on  with a window whose gradients are reduced at its end
  void begin_forward(bool evaluates, bool goes_on = false) {
    if (phase_ == Phase::forward && evaluates_ && !thrown_) finish_forward();
    finish_reductions();
    drop(goes_on);
    memory_.start_root();
    phase_ = Phase::forward;
    evaluates_ = evaluates;
    memory_.expect_backward(!evaluates);
    schedule().forget_before(std::exchange(forget_[evaluates_], 0));
    forward_.begin(schedule(), reshards(), options_.prefetch, memory_);
    memory_.finish_root();
  }

  /// Every rank ends its forward here: gathers that only others need are taken part in. Backward does it by itself.
  void finish_forward() {
    forward_.end(memory_);
    settle_forward();
    phase_ = Phase::idle;
  }

  /// A unit whose parameters are all frozen on every rank is not reduced.
  /// @param reduces  else gradients stay whole, for a later backward of the window to reduce
  /// @param adds     to what was reduced of earlier micro-batches, instead of beginning anew
  void begin_backward(bool reduces, bool adds) {
    ends_forward_ = phase_ == Phase::forward;
    resting_.look_at(units());
    if (ends_forward_) forward_.end(memory_, resting_.fingerprint());
    phase_ = Phase::backward;
    reduces_ = reduces;
    adds_ = adds;
    enters_backward_ = true;
  }

  /// Reductions may be under way when it returns.
  void end_backward() {
    enter_backward();
    backward_.to_end(memory_);
    if (reduces_) {
      memory_.reduce_owed(adds_);
      memory_.reduce_root(adds_);
    }
    drop(!reduces_);
  }

  void finish_reductions() { memory_.finish_reductions(); }

  /// Parameters have changed: what is gathered is stale.
  void invalidate() {
    finish_reductions();
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

  /// The run is over without that.
  void abandon() {
    memory_.abandon();
    phase_ = Phase::over;
  }

  // What the units call.

  int64_t begin(int unit) {
    std::size_t visit = 0;
    if (phase_ == Phase::forward)
      visit = forward_.reach(memory_, unit);
    else if (phase_ != Phase::over && !whole_.contains(unit))
      memory_.gather(unit);  // a forward that the loop does not know of, on all ranks alike
    forward_.enter(unit);
    if (phase_ != Phase::forward || evaluates_) return -1;
    return passes_.add({visit, forward_.first_call(unit)});
  }

  void end(int unit, bool thrown) noexcept {
    thrown_ |= thrown;
    forward_.leave();
    if (phase_ == Phase::idle && !thrown && !forward_.is_running(unit)) memory_.release(unit);
  }

  void before_backward(int unit, int64_t pass) {
    if (phase_ == Phase::over || pass < 0) return;
    if (!passes_.has(pass)) refuse_earlier(unit);
    if (phase_ == Phase::forward) {  // a gradient inside the forward, which may itself be differentiated later
      forward_.reach(memory_, unit);
      memory_.retain(unit);
      return;
    }
    enter_backward();
    const std::size_t visit = passes_[pass].visit;
    if (backward_.has_finished(visit)) refuse_order(unit);
    backward_.to_gather(memory_, visit);
  }

  void after_backward(int, int64_t pass) {
    if (phase_ != Phase::backward || !passes_.has(pass) || !passes_[pass].first) return;
    enter_backward();
    backward_.to_finish(memory_, passes_[pass].visit);
  }

 private:
  enum class Phase { idle, forward, backward, over };

  UnitSchedule& schedule() { return schedules_[evaluates_]; }
  bool reshards() const { return options_.reshard_after_forward || evaluates_; }

  void settle_forward() {
    forward_.settle(memory_);
    // An order that never repeats must not make the list grow for ever.
    const bool appended = forward_.appended_from() != UnitSchedule::none;
    if (appended && schedule().visits().size() > 8 * units().size()) forget_[evaluates_] = forward_.appended_from();
  }

  /// The first unit of a backward needs to know what all ranks visited.
  void enter_backward() {
    if (!std::exchange(enters_backward_, false)) return;
    if (ends_forward_) settle_forward();
    // Ranks that froze other units reduce all of them; that they differ is found and named at the step.
    if (!ends_forward_ || !forward_.said_the_same()) resting_.none_rests();
    backward_.begin(schedule(), reshards(), options_.prefetch, reduces_, adds_, resting_.all());
    if (adds_) return;
    std::vector<bool> reduced(units().size(), false);
    for (const UnitVisit& visit : schedule().visits()) reduced[std::size_t(visit.unit)] = !resting_[visit.unit];
    for (std::size_t u = 0; u < reduced.size(); ++u)
      if (!reduced[u]) memory_.unit(int(u)).forget_main();
  }

  /// Nothing is gathered but the root, no gradient is open, nothing is remembered of passes; within a window whose
  /// gradients are reduced at its end, those stay.
  void drop(bool within_window = false) {
    if (within_window)
      memory_.drop_within_window(options_.reshard_after_forward);
    else
      memory_.drop();
    forward_.forget();
    passes_.forget();
    thrown_ = false;
    phase_ = Phase::idle;
  }

  std::string name(int unit) const { return memory_.unit(unit).name(); }

  [[noreturn]] void refuse_earlier(int unit) const {
    throw Error(ExitCode::user_code,
                "backward reached unit '" + name(unit) +
                    "' through a forward of an earlier step, whose parameters are gone. Detach what "
                    "you keep from one step to the next.");
  }

  [[noreturn]] void refuse_order(int unit) const {
    throw Error(ExitCode::user_code,
                "backward reached unit '" + name(unit) +
                    "' after its gradient was sent to its owners: it does not go through the units in "
                    "the reverse order of their forward. Add up the losses and run backward once, or make one unit of "
                    "them.");
  }

  UnitsInMemory memory_;
  Options options_;

  Phase phase_ = Phase::idle;
  bool evaluates_ = false, thrown_ = false;
  bool reduces_ = true;           // this backward, gradients
  bool adds_ = false;             // to those of earlier ones
  bool enters_backward_ = false;  // no unit of this backward was reached yet
  bool ends_forward_ = false;     // and the ranks' agreement on its visits is under way
  RestingUnits resting_;          // in this backward
  ForwardPasses passes_;

  std::array<UnitSchedule, 2> schedules_;  // of training, of evaluation
  std::array<std::size_t, 2> forget_{};    // visits before this one, when the next forward begins
  std::set<int> whole_;
  ForwardWalk forward_;
  BackwardWalk backward_;
};

}  // namespace dovetail
