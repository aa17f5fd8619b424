// SPDX-License-Identifier: Apache-2.0
// Optimizers that do not fit the pair, or are none.
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
#include "stand_in.hpp"

/// It cuts tensors; Sharded keeps them whole for an optimizer over whole matrices.
struct CutsTensors final : dt::StrategyBase {
  static constexpr std::string_view name = "cuts-tensors";
  static constexpr dt::StrategyTraits traits{.cuts_tensors = true};
};

struct OneOptimizer final : dt::StrategyBase {
  static constexpr std::string_view name = "oneoptimizer";
  static constexpr dt::StrategyTraits traits{.max_optimizers = 1};
};
using Two = std::pair<dt::SomeAdamW, dt::SomeAdamW>;

struct Nothing {
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  void configure_optimizers(const dt::Parameters&) const {}
  dt::Tensor training_step(dt::Net&, const dt::Batch&, dt::StepContext&) const { return {}; }
};

int main() {
#if DOVETAIL_BROKEN == 1
  // LBFGS evaluates the loss several times in a step, a scaler does not let it.
  // expect: dovetail-E005
  dt::Trainer<dt::DDP, dt::FP16Mixed>{}.fit(dt::SomeTask<dt::SomeLBFGS>{});
#elif DOVETAIL_BROKEN == 2
  // E005 comes before E006.
  // expect: dovetail-E005
  dt::Trainer<dt::FSDP, dt::FP32>{}.fit(dt::SomeTask<dt::SomeLBFGS>{});
#elif DOVETAIL_BROKEN == 3
  // An optimizer over whole matrices gets parts of them.
  // expect: dovetail-E006
  dt::Trainer<dt::FSDP, dt::FP32>{}.fit(dt::SomeTask<dt::SomeMuon>{});
#elif DOVETAIL_BROKEN == 4
  // expect: dovetail-E006
  dt::Trainer<CutsTensors, dt::FP32>{}.fit(dt::SomeTask<dt::SomeMuon>{});
#elif DOVETAIL_BROKEN == 5
  // Two, where the strategy takes one.
  // expect: dovetail-E008
  dt::Trainer<OneOptimizer, dt::FP32>{}.fit(dt::SomeTask<Two>{});
#elif DOVETAIL_BROKEN == 6
  // expect: dovetail-E026
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(Nothing{});
#else
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<dt::SomeLBFGS>{});
  dt::Trainer<dt::SingleDevice, dt::FP32>{}.fit(dt::SomeTask<dt::SomeLBFGS>{});
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<dt::SomeMuon>{});
  dt::Trainer<CutsTensors, dt::FP32>{}.fit(dt::SomeTask<dt::SomeAdamW>{});
  dt::Trainer<dt::Sharded<1>, dt::FP32>{}.fit(dt::SomeTask<dt::SomeMuon>{});
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<Two>{});
#endif
}
