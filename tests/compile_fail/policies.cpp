// SPDX-License-Identifier: Apache-2.0
// A Strategy and three Precisions, and what each may have wrong.
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
#include "stand_in.hpp"

struct Mine final : dt::StrategyBase {
#if DOVETAIL_BROKEN == 1
  // expect: dovetail-E012: the Strategy has no name
#elif DOVETAIL_BROKEN == 2
  // A member of objects, not a constant of the type.
  // expect: dovetail-E012: the Strategy has no name
  std::string_view name = "mine";
#else
  static constexpr std::string_view name = "mine";
#endif

#if DOVETAIL_BROKEN == 3
  // It says nothing about itself.
  // expect: dovetail-E012: the Strategy has no constant `traits`
#elif DOVETAIL_BROKEN == 4
  // expect: dovetail-E012: the Strategy has no constant `traits`
  dt::StrategyTraits traits{};
#elif DOVETAIL_BROKEN == 5
  // An edge on a stage that it lacks.
  // expect: dovetail-E011
  static constexpr dt::StrategyTraits traits{.order = { { dt::Stage::wrap_model, dt::Stage::bind_schedulers } }};
#elif DOVETAIL_BROKEN == 6
  // Optimizers wait for a stage that is absent.
  // expect: dovetail-E011
  static constexpr dt::StrategyTraits traits{.delays_optimizer_setup = true};
#else
  static constexpr dt::StrategyTraits traits{.delays_optimizer_setup = true,
                                             .wraps_model = true,
                                             .order = {{dt::Stage::wrap_model, dt::Stage::bind_schedulers}}};
#endif

#if DOVETAIL_BROKEN == 7
  // A hook with other arguments hides the empty one of the base.
  // expect: dovetail-E012: a hook of the Strategy cannot be called
  void after_step() {}
#elif DOVETAIL_BROKEN == 8
  // A misspelt hook would hide nothing and never be called.
  // expect: dovetail-E022: befor_forward is not a hook. Use before_forward.
  void befor_forward(dt::StrategyContext&) {}
#elif DOVETAIL_BROKEN == 9
  // expect: dovetail-E022: wrap_modle is not a hook. Use wrap_model.
  void wrap_modle(dt::StrategyContext&) {}
#else
  void after_step(dt::StrategyContext&) {}
  void before_forward(dt::StrategyContext&) {}
  void wrap_model(dt::StrategyContext&) {}
#endif
};

struct Guard {
  ~Guard() {}
};

struct Guarded final : dt::PrecisionBase {
  static constexpr std::string_view name = "guarded";
#if DOVETAIL_BROKEN == 10
  // Those of a strategy.
  // expect: dovetail-E012: the Precision has no constant `traits`
  static constexpr dt::StrategyTraits traits{};
#elif DOVETAIL_BROKEN == 11
  // A constant of each object, not of the type.
  // expect: dovetail-E012: the Precision has no constant `traits`
  const dt::PrecisionTraits traits{};
#elif DOVETAIL_BROKEN == 12
  // P58 bf16 has the range of fp32.
  // expect: dovetail-E004
  static constexpr dt::PrecisionTraits traits{.scaler = dt::Scaler::collective, .compute = dt::Format::bf16};
#else
  static constexpr dt::PrecisionTraits traits{.scaler = dt::Scaler::collective, .compute = dt::Format::fp16};
#endif

#if DOVETAIL_BROKEN == 13
  // A forward guard that returns nothing guards nothing.
  // expect: dovetail-E012: forward_guard of the Precision cannot be called
  void forward_guard(dt::PrecisionContext&) {}
#elif DOVETAIL_BROKEN == 14
  // The name of another framework.
  // expect: dovetail-E022: forward_context is not a hook. Use forward_guard.
  Guard forward_context(dt::PrecisionContext&) {
    return {};
  }
#else
  Guard forward_guard(dt::PrecisionContext&) {
    return {};
  }
#endif
};

struct Masters final : dt::PrecisionBase {
  static constexpr std::string_view name = "masters";
#if DOVETAIL_BROKEN == 15
  // Wraps full parameters, but no optimizers.
  // expect: dovetail-E011
  static constexpr dt::PrecisionTraits traits{.wraps_full_parameters = true};
#else
  static constexpr dt::PrecisionTraits traits{.wraps_optimizers = true, .wraps_full_parameters = true};
#endif
};

struct Late final : dt::PrecisionBase {
  static constexpr std::string_view name = "late";
#if DOVETAIL_BROKEN == 16
  // An edge on a stage that it lacks; E011 comes before E001.
  // expect: dovetail-E011
  static constexpr dt::PrecisionTraits traits{.order = { { dt::Stage::wrap_optimizers, dt::Stage::wrap_model } }};
#else
  static constexpr dt::PrecisionTraits traits{.wraps_optimizers = true, .order = {
                                                { dt::Stage::wrap_model,
                                                  dt::Stage::wrap_optimizers }
                                              }};
#endif
};

int main() {
  dt::Trainer<Mine, dt::FP32>{}.fit(dt::SomeTask<>{});
  dt::Trainer<dt::DDP, Guarded>{}.fit(dt::SomeTask<>{});
  dt::Trainer<dt::DDP, Masters>{}.fit(dt::SomeTask<>{});
  dt::Trainer<dt::FSDP, Late>{}.fit(dt::SomeTask<>{});
}
