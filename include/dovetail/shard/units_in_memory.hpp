// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/flat_unit.hpp>

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

  void gather_root() {
    if (std::exchange(root_gathered_, true)) return;
    root_.start_gather(comm_);
    root_.finish_gather();
  }
  void release_root() {
    root_.release();
    root_gathered_ = false;
  }

  /// Whatever state they are in: all units are freed, and all gradients; the root's parameters stay.
  void drop() {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (states_[u].in_flight) units_[u].finish_gather();
      units_[u].release();
      units_[u].close_gradients();
      states_[u] = State{};
    }
    root_.close_gradients();
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
  };

  State& state(int unit) { return states_[std::size_t(unit)]; }
  const State& state(int unit) const { return states_[std::size_t(unit)]; }

  std::vector<FlatUnit> units_;
  FlatUnit root_;
  std::vector<State> states_;
  Communicator comm_;
  bool root_gathered_ = false;
};

}  // namespace dovetail
