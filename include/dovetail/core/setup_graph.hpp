// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <boost/hana/for_each.hpp>
#include <boost/hana/tuple.hpp>
#include <cstddef>
#include <dovetail/core/stage.hpp>
#include <dovetail/core/traits.hpp>
#include <utility>

/// The order of set-up, worked out from traits. Traits become edges between stages; the order is a topological sort at
/// compile time; a conflict is a cycle. So a user's policy is judged by what it says, without any list of names.

namespace dovetail {

namespace hana = boost::hana;

/// A set of stages, one bit each.
using StageSet = unsigned;

constexpr StageSet only(Stage stage) {
  return 1u << static_cast<unsigned>(stage);
}
constexpr bool contains(StageSet set, Stage stage) {
  return (set & only(stage)) != 0;
}

/// The order of set-up of one pair, and what stands in its way.
struct SetupOrder {
  std::array<Stage, stage_count> stages{};
  unsigned size = 0;
  StageSet cycle = 0;  ///< stages that wait for each other; empty if the order is complete

  constexpr const Stage* begin() const { return stages.data(); }
  constexpr const Stage* end() const { return stages.data() + size; }
};

namespace detail {

inline constexpr Stage always_present[]{Stage::environment, Stage::build_model,     Stage::convert_model,
                                        Stage::place_model, Stage::make_optimizers, Stage::bind_schedulers,
                                        Stage::restore};

inline constexpr Edge always_ordered[]{
    {Stage::environment, Stage::build_model},
    {Stage::build_model, Stage::convert_model},
    {Stage::convert_model, Stage::place_model},
    {Stage::place_model, Stage::wrap_model},
    {Stage::place_model, Stage::make_optimizers},
    {Stage::make_optimizers, Stage::rebuild_optimizers},
    {Stage::make_optimizers, Stage::wrap_optimizers},
    {Stage::rebuild_optimizers, Stage::wrap_optimizers},  // masters of what the rank keeps, not of what it gives away
    {Stage::make_optimizers, Stage::bind_schedulers},
    {Stage::rebuild_optimizers, Stage::bind_schedulers},
    {Stage::wrap_optimizers, Stage::bind_schedulers},
    {Stage::bind_schedulers, Stage::restore},
    {Stage::wrap_model, Stage::restore},
};

struct SetupGraph {
  StageSet present = 0;
  std::array<StageSet, stage_count> before{};  ///< before[s]: the stages that come before stage s

  constexpr void add(Stage stage) { present |= only(stage); }
  constexpr void order(Edge edge) { before[static_cast<unsigned>(edge.then)] |= only(edge.first); }

  /// Does `stage` come before one of `set`?
  constexpr bool leads_into(Stage stage, StageSet set) const {
    for (unsigned s = 0; s < stage_count; ++s)
      if (contains(set, Stage(s)) && contains(before[s], stage)) return true;
    return false;
  }
};

constexpr SetupGraph setup_graph(const StrategyTraits& strategy, const PrecisionTraits& precision) {
  SetupGraph graph;
  for (Stage stage : always_present) graph.add(stage);
  for (Edge edge : always_ordered) graph.order(edge);

  if (strategy.wraps_model) graph.add(Stage::wrap_model);
  if (strategy.rebuilds_optimizers) graph.add(Stage::rebuild_optimizers);
  if (precision.wraps_optimizers) graph.add(Stage::wrap_optimizers);

  if (strategy.delays_optimizer_setup) {
    graph.order({Stage::wrap_model, Stage::make_optimizers});
  } else {
    graph.order({Stage::make_optimizers, Stage::wrap_model});
    graph.order({Stage::rebuild_optimizers, Stage::wrap_model});  // the wrapper reduces towards the owners it finds
  }
  if (precision.wraps_full_parameters) graph.order({Stage::wrap_optimizers, Stage::wrap_model});

  for (Edge edge : strategy.order) graph.order(edge);
  for (Edge edge : precision.order) graph.order(edge);
  return graph;
}

/// Kahn's algorithm (A. B. Kahn, Topological sorting of large networks, 1962). Among the stages that are ready the
/// lowest enumerator goes first, so the order is unique. What cannot be placed is trimmed from the back to the stages
/// that lie on a cycle or between two.
constexpr SetupOrder sort(const SetupGraph& graph) {
  SetupOrder order;
  StageSet waiting = graph.present;
  for (bool moved = true; moved;) {
    moved = false;
    for (unsigned s = 0; s < stage_count && !moved; ++s) {
      if (!contains(waiting, Stage(s)) || (graph.before[s] & waiting) != 0) continue;
      order.stages[order.size++] = Stage(s);
      waiting &= ~only(Stage(s));
      moved = true;
    }
  }
  for (bool trimmed = true; trimmed;) {
    trimmed = false;
    for (unsigned s = 0; s < stage_count; ++s) {
      if (!contains(waiting, Stage(s)) || graph.leads_into(Stage(s), waiting)) continue;
      waiting &= ~only(Stage(s));
      trimmed = true;
    }
  }
  order.cycle = waiting;
  return order;
}

constexpr SetupOrder setup_order_of(const StrategyTraits& strategy, const PrecisionTraits& precision) {
  return sort(setup_graph(strategy, precision));
}

}  // namespace detail

/// The order of set-up of a pair, as values to iterate over.
template <class Strategy, class Precision>
inline constexpr SetupOrder setup_order = detail::setup_order_of(Strategy::traits, Precision::traits);

/// Does the pair have one? If not, `setup_order<...>.cycle` says which stages wait for each other.
template <class Strategy, class Precision>
inline constexpr bool setup_order_exists = setup_order<Strategy, Precision>.cycle == 0;

/// The same order as a hana::tuple of constants, which a run iterates: `hana::for_each(setup_plan<S, P>, run_stage)`.
/// Each element converts to its Stage at compile time.
template <class Strategy, class Precision>
inline constexpr auto setup_plan = []<std::size_t... i>(std::index_sequence<i...>) {
  return hana::tuple_c<Stage, setup_order<Strategy, Precision>.stages[i]...>;
}
(std::make_index_sequence<setup_order<Strategy, Precision>.size>{});

}  // namespace dovetail
