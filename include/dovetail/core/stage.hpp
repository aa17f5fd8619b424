// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <initializer_list>
#include <string_view>

namespace dovetail {

/// The stages of setting up a run, in canonical order: where traits leave a choice, the lower enumerator goes first.
enum class Stage : unsigned {
  environment,         ///< ranks meet
  build_model,         ///< Task::configure_model
  convert_model,       ///< the Precision casts the model
  place_model,         ///< the model moves to its device
  wrap_model,          ///< the Strategy wraps or shards the model; present if it says wraps_model
  make_optimizers,     ///< Task::configure_optimizers, exactly once
  rebuild_optimizers,  ///< the Strategy rebuilds them over its part; present if it says rebuilds_optimizers
  wrap_optimizers,     ///< the Precision puts master weights beside them; present if it says wraps_optimizers
  bind_schedulers,     ///< schedules get their optimizers
  restore,             ///< the state of an earlier run is read
};

inline constexpr unsigned stage_count = 10;

/// The stage's name as written in code.
constexpr std::string_view name_of(Stage stage) {
  constexpr std::array<std::string_view, stage_count> names{
      "environment",     "build_model",        "convert_model",   "place_model",     "wrap_model",
      "make_optimizers", "rebuild_optimizers", "wrap_optimizers", "bind_schedulers", "restore"};
  return names[static_cast<unsigned>(stage)];
}

/// One edge of the set-up graph: `first` comes before `then`.
struct Edge {
  Stage first{}, then{};
};

/// Edges that a policy adds to the set-up graph, at most four: `.order = {{Stage::wrap_model, Stage::convert_model}}`.
/// A fifth is an error where the trait is written.
struct Edges {
  std::array<Edge, 4> edges{};
  unsigned count = 0;

  constexpr Edges() = default;
  constexpr Edges(std::initializer_list<Edge> list) {
    for (Edge edge : list) edges.at(count++) = edge;
  }

  constexpr const Edge* begin() const { return edges.data(); }
  constexpr const Edge* end() const { return edges.data() + count; }
};

}  // namespace dovetail
