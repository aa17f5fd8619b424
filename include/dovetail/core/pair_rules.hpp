// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/rule.hpp>
#include <dovetail/core/setup_graph.hpp>

/// Rules about a pair of policies: predicates on traits, never on names. A new rule is one struct here and one entry in
/// the list at the end, which is the order of judgement. Each text is written twice, because a static_assert takes
/// nothing but a literal; a test compares the two.

namespace dovetail {

/// Has a policy every stage that its own traits speak of? Stages of the other policy may be absent: such an edge says
/// "if there is one", so that a policy fits partners that lack the stage.
constexpr bool has_its_stages(const StrategyTraits& traits) {
  for (Edge edge : traits.order)
    for (Stage stage : {edge.first, edge.then})
      if ((stage == Stage::wrap_model && !traits.wraps_model) ||
          (stage == Stage::rebuild_optimizers && !traits.rebuilds_optimizers))
        return false;
  return true;
}
constexpr bool has_its_stages(const PrecisionTraits& traits) {
  for (Edge edge : traits.order)
    for (Stage stage : {edge.first, edge.then})
      if (stage == Stage::wrap_optimizers && !traits.wraps_optimizers) return false;
  return true;
}

namespace rules {

struct E011 {
  static constexpr RuleRow row{"dovetail-E011", When::type,
                               "traits that contradict each other: delays_optimizer_setup without wraps_model, "
                               "wraps_full_parameters without wraps_optimizers, an edge on a stage the policy lacks"};
};

struct DelaysWithoutWrapping : E011 {
  static constexpr std::string_view text =
      "dovetail-E011: the Strategy delays optimizers until the model is wrapped, but never wraps it. Use wraps_model = "
      "true as well.";
  static constexpr bool violated(const StrategyTraits& s, const PrecisionTraits&) {
    return s.delays_optimizer_setup && !s.wraps_model;
  }
  template <class S, class P>
  struct Report {
    static_assert(S::traits.wraps_model,
                  "dovetail-E011: the Strategy delays optimizers until the model is wrapped, but never wraps it. Use "
                  "wraps_model = true as well.");
  };
};

struct WrapsParametersWithoutOptimizers : E011 {
  static constexpr std::string_view text =
      "dovetail-E011: the Precision wraps full parameters, but wraps no optimizers. Use wraps_optimizers = true as "
      "well.";
  static constexpr bool violated(const StrategyTraits&, const PrecisionTraits& p) {
    return p.wraps_full_parameters && !p.wraps_optimizers;
  }
  template <class S, class P>
  struct Report {
    static_assert(wraps_optimizers<P>,
                  "dovetail-E011: the Precision wraps full parameters, but wraps no optimizers. Use wraps_optimizers = "
                  "true as well.");
  };
};

struct StrategyOrdersAbsentStage : E011 {
  static constexpr std::string_view text =
      "dovetail-E011: the Strategy orders a stage that it lacks. Use wraps_model or rebuilds_optimizers = true as "
      "well.";
  static constexpr bool violated(const StrategyTraits& s, const PrecisionTraits&) { return !has_its_stages(s); }
  template <class S, class P>
  struct Report {
    static_assert(has_its_stages(S::traits),
                  "dovetail-E011: the Strategy orders a stage that it lacks. Use wraps_model or rebuilds_optimizers = "
                  "true as well.");
  };
};

struct PrecisionOrdersAbsentStage : E011 {
  static constexpr std::string_view text =
      "dovetail-E011: the Precision orders a stage that it lacks. Use wraps_optimizers = true as well.";
  static constexpr bool violated(const StrategyTraits&, const PrecisionTraits& p) { return !has_its_stages(p); }
  template <class S, class P>
  struct Report {
    static_assert(has_its_stages(P::traits),
                  "dovetail-E011: the Precision orders a stage that it lacks. Use wraps_optimizers = true as well.");
  };
};

}  // namespace rules

namespace detail {

template <Stage...>
struct Cycle {};

template <StageSet set, unsigned s = 0, Stage... found>
consteval auto cycle_of() {
  if constexpr (s == stage_count)
    return Cycle<found...>{};
  else if constexpr (contains(set, Stage(s)))
    return cycle_of<set, s + 1, found..., Stage(s)>();
  else
    return cycle_of<set, s + 1, found...>();
}

/// The stages that wait for each other, as a type: the compiler prints them beside the message.
template <class S, class P>
using CycleOf = decltype(cycle_of<setup_order<S, P>.cycle>());

template <class S, class P, class Cycle>
struct OptimizersTooLateReport {
  static_assert(setup_order_exists<S, P>,
                "dovetail-E001: no set-up order fits both policies: the Strategy makes optimizers after wrapping the "
                "model, the Precision wraps them before. Use MasterWeights or a mixed precision.");
};

template <class S, class P, class Cycle>
struct OrdersContradictReport {
  static_assert(setup_order_exists<S, P>,
                "dovetail-E001: no set-up order fits both policies: the policies' orders contradict each other. Use "
                "edges (trait `order`) that can all hold.");
};

}  // namespace detail

namespace rules {

struct E001 {
  static constexpr RuleRow row{"dovetail-E001", When::type,
                               "no set-up order: the policies' stages wait for each other"};
  static constexpr bool no_order(const StrategyTraits& s, const PrecisionTraits& p) {
    return detail::setup_order_of(s, p).cycle != 0;
  }
};

struct OptimizersTooLate : E001 {
  static constexpr std::string_view text =
      "dovetail-E001: no set-up order fits both policies: the Strategy makes optimizers after wrapping the model, the "
      "Precision wraps them before. Use MasterWeights or a mixed precision.";
  static constexpr bool violated(const StrategyTraits& s, const PrecisionTraits& p) {
    return no_order(s, p) && s.delays_optimizer_setup && p.wraps_optimizers && p.wraps_full_parameters;
  }
  template <class S, class P>
  using Report = detail::OptimizersTooLateReport<S, P, detail::CycleOf<S, P>>;
};

struct OrdersContradict : E001 {
  static constexpr std::string_view text =
      "dovetail-E001: no set-up order fits both policies: the policies' orders contradict each other. Use edges (trait "
      "`order`) that can all hold.";
  static constexpr bool violated(const StrategyTraits& s, const PrecisionTraits& p) { return no_order(s, p); }
  template <class S, class P>
  using Report = detail::OrdersContradictReport<S, P, detail::CycleOf<S, P>>;
};

struct E002 {
  static constexpr RuleRow row{
      "dovetail-E002", When::type,
      "the precision wraps full parameters and the strategy shards optimizer state or gradients"};
  static constexpr std::string_view text =
      "dovetail-E002: the Precision wraps full parameters, but the Strategy shards their state: a rank would keep "
      "masters of tensors it does not own. Use MasterWeights or a mixed precision.";
  static constexpr bool violated(const StrategyTraits& s, const PrecisionTraits& p) {
    return p.wraps_full_parameters && s.shards != Shards::nothing;
  }
  template <class S, class P>
  static constexpr bool wraps_only_what_it_owns = !violated(S::traits, P::traits);
  template <class S, class P>
  struct Report {
    static_assert(wraps_only_what_it_owns<S, P>,
                  "dovetail-E002: the Precision wraps full parameters, but the Strategy shards their state: a rank "
                  "would keep masters of tensors it does not own. Use MasterWeights or a mixed precision.");
  };
};

struct E003 {
  static constexpr RuleRow row{"dovetail-E003", When::type,
                               "the scaler decides locally and the strategy shards gradients or parameters"};
  static constexpr std::string_view text =
      "dovetail-E003: the scaler decides on each rank alone, but the Strategy shards gradients: ranks would skip steps "
      "alone and part ways. Use a collective scaler, as FP16Mixed has.";
  static constexpr bool violated(const StrategyTraits& s, const PrecisionTraits& p) {
    return p.scaler == Scaler::local && (s.shards == Shards::gradients || s.shards == Shards::parameters);
  }
  template <class S, class P>
  static constexpr bool ranks_skip_together = !violated(S::traits, P::traits);
  template <class S, class P>
  struct Report {
    static_assert(
        ranks_skip_together<S, P>,
        "dovetail-E003: the scaler decides on each rank alone, but the Strategy shards gradients: ranks would "
        "skip steps alone and part ways. Use a collective scaler, as FP16Mixed has.");
  };
};

struct E004 {
  static constexpr RuleRow row{"dovetail-E004", When::type, "a loss scaler with bf16, fp32 or fp64 compute"};
  static constexpr std::string_view text =
      "dovetail-E004: a loss scaler without fp16 compute has nothing to scale. Use scaler = none, or compute = fp16.";
  static constexpr bool violated(const StrategyTraits&, const PrecisionTraits& p) {
    return p.scaler != Scaler::none && p.compute != Format::fp16;
  }
  template <class S, class P>
  static constexpr bool scaler_has_work = !violated(S::traits, P::traits);
  template <class S, class P>
  struct Report {
    static_assert(scaler_has_work<S, P>,
                  "dovetail-E004: a loss scaler without fp16 compute has nothing to scale. Use scaler = none, or "
                  "compute = fp16.");
  };
};

}  // namespace rules

namespace detail {

/// In the order of judgement; E012 comes before them, since it decides whether there are traits to read.
using PairRules = RuleList<rules::DelaysWithoutWrapping, rules::WrapsParametersWithoutOptimizers,
                           rules::StrategyOrdersAbsentStage, rules::PrecisionOrdersAbsentStage,
                           rules::OptimizersTooLate, rules::OrdersContradict, rules::E002, rules::E003, rules::E004>;

}  // namespace detail

}  // namespace dovetail
