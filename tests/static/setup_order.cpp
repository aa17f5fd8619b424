// SPDX-License-Identifier: Apache-2.0

// The order of set-up of every compatible pair, written out, and of user policies with edges of their own.
#include "check.hpp"

#include <array>
#include <boost/hana/size.hpp>
#include <dovetail/core/verdict.hpp>
#include <dovetail/registry.hpp>

using namespace dovetail;
using enum Stage;

namespace {

template <class S, class P, class... Expected>
constexpr bool order_is(Expected... expected) {
  const std::array<Stage, sizeof...(Expected)> stages{expected...};
  const SetupOrder& order = setup_order<S, P>;
  if (order.size != stages.size() || order.cycle != 0) return false;
  for (unsigned i = 0; i < order.size; ++i)
    if (order.stages[i] != stages[i]) return false;
  return true;
}

/// The place of a stage in a pair's order; stage_count if it is absent.
template <class S, class P>
constexpr unsigned place(Stage stage) {
  const SetupOrder& order = setup_order<S, P>;
  for (unsigned i = 0; i < order.size; ++i)
    if (order.stages[i] == stage) return i;
  return stage_count;
}

// What each pair has to be, from its kind alone.
template <class S, class P>
constexpr bool order_of_pair_is_right() {
  constexpr bool sharded = S::traits.rebuilds_optimizers, wraps = wraps_optimizers<P>;
  if constexpr (!compatible<S, P>)
    return true;
  else if constexpr (std::is_same_v<S, SingleDevice> && !wraps)
    return order_is<S, P>(environment, build_model, convert_model, place_model, make_optimizers, bind_schedulers,
                          restore);
  else if constexpr (std::is_same_v<S, SingleDevice>)
    return order_is<S, P>(environment, build_model, convert_model, place_model, make_optimizers, wrap_optimizers,
                          bind_schedulers, restore);
  else if constexpr (delays_optimizer_setup<S> && !wraps)
    return order_is<S, P>(environment, build_model, convert_model, place_model, wrap_model, make_optimizers,
                          bind_schedulers, restore);
  else if constexpr (delays_optimizer_setup<S>)
    return order_is<S, P>(environment, build_model, convert_model, place_model, wrap_model, make_optimizers,
                          wrap_optimizers, bind_schedulers, restore);
  else if constexpr (sharded && !wraps)
    return order_is<S, P>(environment, build_model, convert_model, place_model, make_optimizers, rebuild_optimizers,
                          wrap_model, bind_schedulers, restore);
  else if constexpr (sharded)
    return order_is<S, P>(environment, build_model, convert_model, place_model, make_optimizers, rebuild_optimizers,
                          wrap_model, wrap_optimizers, bind_schedulers, restore);
  else if constexpr (!wraps)
    return order_is<S, P>(environment, build_model, convert_model, place_model, make_optimizers, wrap_model,
                          bind_schedulers, restore);
  else if constexpr (P::traits.wraps_full_parameters)
    return order_is<S, P>(environment, build_model, convert_model, place_model, make_optimizers, wrap_optimizers,
                          wrap_model, bind_schedulers, restore);
  else
    return order_is<S, P>(environment, build_model, convert_model, place_model, make_optimizers, wrap_model,
                          wrap_optimizers, bind_schedulers, restore);
}

// Optimizers are made once, on the device by then. A wrapping precision is in the plan of every pair that it fits,
// after its optimizers. What is restored comes last. The plan is the order.
template <class S, class P>
constexpr bool invariants_hold() {
  if constexpr (!compatible<S, P>) {
    return true;
  } else {
    unsigned made = 0;
    for (Stage stage : setup_order<S, P>) made += stage == make_optimizers;
    const auto at = [](Stage stage) { return place<S, P>(stage); };
    return made == 1 && at(environment) == 0 && at(restore) == setup_order<S, P>.size - 1 &&
           at(place_model) < at(make_optimizers) && at(convert_model) < at(place_model) &&
           (!wraps_optimizers<P> || (at(make_optimizers) < at(wrap_optimizers) && at(wrap_optimizers) < at(restore))) &&
           (!S::traits.wraps_model || at(wrap_model) < at(restore)) &&
           decltype(hana::size(setup_plan<S, P>))::value == setup_order<S, P>.size;
  }
}

template <class... Pairs>
consteval bool all_pairs(PairList<Pairs...>) {
  return ((order_of_pair_is_right<typename Pairs::Strategy, typename Pairs::Precision>() &&
           invariants_hold<typename Pairs::Strategy, typename Pairs::Precision>()) &&
          ...);
}
static_assert(all_pairs(BuiltInPairs{}));

// The pairs that are named in the requirements, in full.
static_assert(order_is<DDP, Apex<O2>>(environment, build_model, convert_model, place_model, make_optimizers,
                                      wrap_optimizers, wrap_model, bind_schedulers, restore));
static_assert(order_is<FSDP, MasterWeights<BF16>>(environment, build_model, convert_model, place_model, wrap_model,
                                                  make_optimizers, wrap_optimizers, bind_schedulers, restore));

// A conflict is a cycle, and it holds exactly the stages that wait for each other.
static_assert(setup_order<FSDP, Apex<O2>>.cycle == (only(wrap_model) | only(make_optimizers) | only(wrap_optimizers)));
static_assert(setup_order<FSDP, Apex<O2>>.size == 4);

// Edges of users: the shortest cycle, edges that hold, edges on what the partner lacks.
constexpr SetupOrder with(Edges edges, PrecisionTraits precision = {}) {
  return detail::setup_order_of({.wraps_model = true, .order = edges}, precision);
}
static_assert(with({{wrap_model, convert_model}}).cycle ==
              (only(wrap_model) | only(convert_model) | only(place_model) | only(make_optimizers)));
static_assert(with({{restore, restore}}).cycle == only(restore));
static_assert(with({{wrap_model, bind_schedulers}}).cycle == 0);
static_assert(with({{bind_schedulers, wrap_model}}).cycle == 0);
static_assert(with({{bind_schedulers, wrap_model}}).stages[6] == wrap_model);
static_assert(with({{wrap_optimizers, build_model}}).cycle == 0, "the precision has no such stage, so nothing waits");
static_assert(with({{wrap_optimizers, build_model}}, {.wraps_optimizers = true}).cycle != 0);
static_assert(with({{wrap_optimizers, wrap_model}}, {.wraps_optimizers = true}).cycle == 0);
static_assert(with({{restore, environment}}).size == 0);

// Delaying and rebuilding: wrap, make, rebuild.
constexpr SetupOrder both = detail::setup_order_of(
    {.delays_optimizer_setup = true, .rebuilds_optimizers = true, .wraps_model = true}, {.wraps_optimizers = true});
static_assert(both.cycle == 0 && both.size == stage_count);
static_assert(both.stages[4] == wrap_model && both.stages[5] == make_optimizers &&
              both.stages[6] == rebuild_optimizers && both.stages[7] == wrap_optimizers);

// The order is the only one that prefers canonical stages: with no traits, the list itself.
constexpr SetupOrder plainest = detail::setup_order_of({}, {});
static_assert(plainest.size == 7 && plainest.stages[4] == make_optimizers);

}  // namespace

int main() {
  unsigned stages = 0;
  hana::for_each(setup_plan<DDP, Apex<O2>>, [&](auto stage) {
    static_assert(setup_order<DDP, Apex<O2>>.size == 9);
    check::that(setup_order<DDP, Apex<O2>>.stages[stages++] == stage(), name_of(stage()));
  });
  check::that(stages == 9, "the plan of DDP with Apex has nine stages");
  std::puts("T1 T2 T6 T22 P52 orders of 60 pairs, 12 of them refused; cycles of user edges");
  return check::summary("setup_order");
}
