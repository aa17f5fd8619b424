// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/flat_unit.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace dovetail {

/// The storage of all units of a model, and which of them are gathered. It knows of no order: whoever calls it must do
/// so in the same order on every rank.
class UnitsInMemory {
 public:
  UnitsInMemory(std::vector<FlatUnit> units, FlatUnit root, Communicator comm)
      : units_(std::move(units)), root_(std::move(root)), states_(units_.size()), comm_(std::move(comm)) {}

  const std::vector<FlatUnit>& units() const { return units_; }
  FlatUnit& unit(int unit) { return units_[std::size_t(unit)]; }
  const FlatUnit& unit(int unit) const { return units_[std::size_t(unit)]; }
  FlatUnit& root() { return root_; }
  const FlatUnit& root() const { return root_; }
  const std::string& name(int unit) const { return units_[std::size_t(unit)].name(); }
  Communicator& comm() { return comm_; }

  bool is_kept(int unit) const { return state(unit).kept; }

  /// Its memory stays until the next drop or let_go, whether or not it is released.
  void keep(int unit) { state(unit).kept = true; }
  void let_go(int unit) { state(unit).kept = false; }

  void gather(int unit) {
    State& s = state(unit);
    if (s.gathered) return;
    if (!std::exchange(s.in_flight, false)) units_[std::size_t(unit)].start_gather(comm_);
    units_[std::size_t(unit)].finish_gather();
    s.gathered = true;
  }

  /// Starts to gather a unit that will be needed. False where it is there now and will have been released by then: too
  /// early.
  bool gather_ahead(int unit, bool will_be_released) {
    State& s = state(unit);
    if (s.in_flight) return true;
    if (s.gathered) return !will_be_released;
    units_[std::size_t(unit)].start_gather(comm_);
    s.in_flight = true;
    return true;
  }

  void release(int unit) {
    state(unit).gathered = false;
    if (!state(unit).kept) units_[std::size_t(unit)].release();
  }

  void start_root() {
    if (!std::exchange(root_gathered_, true)) root_.start_gather(comm_);
  }
  void finish_root() { root_.finish_gather(); }
  void release_root() {
    root_.finish_gather();
    root_.release();
    root_gathered_ = false;
  }

  /// Starts to send the unit's gradients to their owners. One reduction is under way while backward computes the next
  /// unit: that of the unit before is waited for first, so that whole gradients of two units exist at most.
  void reduce(int unit, bool adds) {
    state(unit).owed = false;
    finish_reductions();
    start(units_[std::size_t(unit)], adds);
  }
  void reduce_root(bool adds) { start(root_, adds); }

  void finish_reductions() {
    for (FlatUnit* unit : reducing_) unit->finish_reduce();
    reducing_.clear();
  }

  /// The unit's gradients stay whole until the window's last backward. They are reduced then, also if it does not come
  /// by the unit.
  void owe(int unit) { state(unit).owed = true; }
  void reduce_owed(bool adds) {
    for (std::size_t u = 0; u < units_.size(); ++u)
      if (states_[u].owed) reduce(int(u), adds);
  }

  /// Nothing of a window stays: all units are freed, and all gradients that are not on their way; the root's parameters
  /// stay.
  void drop() {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      drop_gathered(u);
      if (!is_reducing(units_[u])) units_[u].forget_gradients();
      states_[u] = State{};
    }
    if (!is_reducing(root_)) root_.forget_gradients();
  }

  /// Between micro-batches whose gradients are reduced together: those stay, and parameters unless they are freed after
  /// every forward.
  void drop_within_window(bool frees_parameters) {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (frees_parameters || !states_[u].gathered) drop_gathered(u);
      states_[u].kept = false;
    }
  }

  /// Whole parameters for the module.
  void restore() {
    for (FlatUnit& unit : units_) unit.restore(comm_);
    root_.restore(comm_);
  }

 private:
  struct State {
    bool gathered = false;   ///< the same on every rank at the same point of the order
    bool in_flight = false;  ///< gathered ahead
    bool kept = false;
    bool owed = false;  ///< gradients of earlier micro-batches, on some rank
  };

  void drop_gathered(std::size_t u) {
    if (std::exchange(states_[u].in_flight, false)) units_[u].finish_gather();
    units_[u].release();
    states_[u].gathered = false;
  }

  void start(FlatUnit& unit, bool adds) {
    unit.start_reduce(comm_, adds);
    reducing_.push_back(&unit);
    if (comm_.size() == 1) finish_reductions();
  }

  bool is_reducing(const FlatUnit& unit) const {
    return std::find(reducing_.begin(), reducing_.end(), &unit) != reducing_.end();
  }

  State& state(int unit) { return states_[std::size_t(unit)]; }
  const State& state(int unit) const { return states_[std::size_t(unit)]; }

  std::vector<FlatUnit> units_;
  FlatUnit root_;
  std::vector<State> states_;
  std::vector<FlatUnit*> reducing_;
  Communicator comm_;
  bool root_gathered_ = false;
};

}  // namespace dovetail
