// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/flat_unit.hpp>
#include <dovetail/shard/gather_states.hpp>
#include <dovetail/shard/unit_ranks.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace dovetail {

/// The storage of all units of a model, and which of them are gathered. It knows of no order: whoever calls it must do
/// so in the same order on every rank.
class UnitsInMemory {
 public:
  /// @param max_gathered  units are gathered ahead only while fewer are gathered; 0: no limit
  UnitsInMemory(std::vector<FlatUnit> units, FlatUnit root, UnitRanks ranks, int max_gathered = 0)
      : units_(std::move(units)),
        root_(std::move(root)),
        gathers_(units_.size(), max_gathered),
        states_(units_.size()),
        ranks_(std::move(ranks)) {}

  const std::vector<FlatUnit>& units() const { return units_; }
  FlatUnit& unit(int unit) { return units_[std::size_t(unit)]; }
  const FlatUnit& unit(int unit) const { return units_[std::size_t(unit)]; }
  FlatUnit& root() { return root_; }
  const FlatUnit& root() const { return root_; }
  const std::string& name(int unit) const { return units_[std::size_t(unit)].name(); }
  Communicator& comm() { return ranks_.all; }
  UnitRanks& ranks() { return ranks_; }

  /// Its memory stays until the next drop or let_go, whether or not it is released.
  void retain(int unit) { state(unit).retained = true; }
  void let_go(int unit) { state(unit).retained = false; }

  void gather(int unit) {
    const auto before = gathers_.need(std::size_t(unit));
    if (before == GatherStates::Is::away) start_gather(units_[std::size_t(unit)]);
    if (before != GatherStates::Is::whole) units_[std::size_t(unit)].finish_gather();
  }

  /// Starts to gather a unit that will be needed. False: it is too early for that.
  bool gather_ahead(int unit, bool will_be_released) {
    const auto ahead = gathers_.need_later(std::size_t(unit), will_be_released);
    if (ahead == GatherStates::Ahead::start) start_gather(units_[std::size_t(unit)]);
    return ahead != GatherStates::Ahead::too_early;
  }

  void release(int unit) {
    gathers_.release(std::size_t(unit));
    if (!state(unit).retained) units_[std::size_t(unit)].release();
  }

  /// Will backward come by the units that are freed from now on? Then slices of them stay, where there are slices.
  void expect_backward(bool comes) { keeps_slices_ = comes && ranks_.reshard.size() > 1; }

  /// Frees a unit that backward needs once more.
  void reshard(int unit) {
    if (!keeps_slices_) return release(unit);
    if (gathers_.release(std::size_t(unit))) units_[std::size_t(unit)].slice(ranks_.reshard, state(unit).retained);
  }

  void start_root() {
    if (!std::exchange(root_gathered_, true)) start_gather(root_);
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
      if (frees_parameters || gathers_.of(u) != GatherStates::Is::whole) drop_gathered(u);
      states_[u].retained = false;
    }
  }

  /// Whole parameters for the module.
  void restore() {
    for (FlatUnit& unit : units_) unit.restore(ranks_.shard);
    root_.restore(ranks_.shard);
  }

  void abandon() {
    for (FlatUnit& unit : units_) unit.abandon();
    root_.abandon();
  }

 private:
  struct State {
    bool retained = false;
    bool owed = false;  ///< gradients of earlier micro-batches, on some rank
  };

  void drop_gathered(std::size_t u) {
    if (gathers_.drop(u) == GatherStates::Is::in_flight) units_[u].finish_gather();
    units_[u].release();
  }

  void start_gather(FlatUnit& unit) { unit.start_gather(ranks_.shard, ranks_.reshard); }

  void start(FlatUnit& unit, bool adds) {
    unit.start_reduce(ranks_.shard, adds);
    reducing_.push_back(&unit);
    if (ranks_.shard.size() == 1) finish_reductions();
  }

  bool is_reducing(const FlatUnit& unit) const {
    return std::find(reducing_.begin(), reducing_.end(), &unit) != reducing_.end();
  }

  State& state(int unit) { return states_[std::size_t(unit)]; }

  std::vector<FlatUnit> units_;
  FlatUnit root_;
  GatherStates gathers_;
  std::vector<State> states_;
  std::vector<FlatUnit*> reducing_;
  UnitRanks ranks_;
  bool root_gathered_ = false, keeps_slices_ = false;
};

}  // namespace dovetail
