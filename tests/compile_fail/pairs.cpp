// SPDX-License-Identifier: Apache-2.0
// Pairs of policies of which each is right by itself.
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
#include "stand_in.hpp"

/// A user's strategy that delays optimizers.
struct ZeroInfinity final : dt::StrategyBase {
  static constexpr std::string_view name = "zeroinfinity";
  static constexpr dt::StrategyTraits traits{.delays_optimizer_setup = true, .wraps_model = true};
};

/// With an edge of its own. Against placing a model after converting it, it makes a cycle of three.
struct Ordered final : dt::StrategyBase {
  static constexpr std::string_view name = "ordered";
#if DOVETAIL_BROKEN == 1
  // expect: dovetail-E001: no set-up order fits both policies: the policies' orders contradict each other
  static constexpr dt::StrategyTraits traits{.wraps_model = true, .order = {
                                               { dt::Stage::wrap_model,
                                                 dt::Stage::convert_model }
                                             }};
#else
  static constexpr dt::StrategyTraits traits{.wraps_model = true, .order = {
                                               { dt::Stage::bind_schedulers,
                                                 dt::Stage::wrap_model }
                                             }};
#endif
};

/// A user's precision that wraps full parameters.
struct Masters final : dt::PrecisionBase {
  static constexpr std::string_view name = "masters";
  static constexpr dt::PrecisionTraits traits{.wraps_optimizers = true, .wraps_full_parameters = true};
};

struct LocalScaler final : dt::PrecisionBase {
  static constexpr std::string_view name = "localscaler";
  static constexpr dt::PrecisionTraits traits{.scaler = dt::Scaler::local, .compute = dt::Format::fp16};
};

int main() {
#if DOVETAIL_BROKEN == 2
  // T28 P50 FSDP makes optimizers after wrapping the model, Apex wraps them before.
  // expect: dovetail-E001
  dt::Trainer<dt::FSDP, dt::Apex<dt::O2>>{}.fit(dt::SomeTask<>{});
#elif DOVETAIL_BROKEN == 3
  // Apex is one family for the order: every level is refused.
  // expect: dovetail-E001
  dt::Trainer<dt::FSDP, dt::Apex<dt::O0>>{}.fit(dt::SomeTask<>{});
#elif DOVETAIL_BROKEN == 4
  // Neither knows of the other.
  // expect: dovetail-E001
  dt::Trainer<dt::FSDP, Masters>{}.fit(dt::SomeTask<>{});
#elif DOVETAIL_BROKEN == 5
  // expect: dovetail-E001
  dt::Trainer<ZeroInfinity, dt::Apex<dt::O2>>{}.fit(dt::SomeTask<>{});
#elif DOVETAIL_BROKEN == 6
  // T28 P50 An order exists, but a rank would keep masters of tensors that it does not own.
  // expect: dovetail-E002
  dt::Trainer<dt::Sharded<1>, dt::Apex<dt::O2>>{}.fit(dt::SomeTask<>{});
#elif DOVETAIL_BROKEN == 7
  // At every level, and for gradients too.
  // expect: dovetail-E002
  dt::Trainer<dt::Sharded<2>, dt::Apex<dt::O3>>{}.fit(dt::SomeTask<>{});
#elif DOVETAIL_BROKEN == 8
  // Each rank would decide alone whether it skips a step.
  // expect: dovetail-E003
  dt::Trainer<dt::Sharded<2>, LocalScaler>{}.fit(dt::SomeTask<>{});
#elif DOVETAIL_BROKEN == 9
  // The same where parameters are sharded.
  // expect: dovetail-E003
  dt::Trainer<dt::FSDP, LocalScaler>{}.fit(dt::SomeTask<>{});
#else
  dt::Trainer<dt::FSDP, dt::MasterWeights<dt::FP16>>{}.fit(dt::SomeTask<>{});
  dt::Trainer<dt::FSDP, dt::FP32>{}.fit(dt::SomeTask<>{});
  dt::Trainer<dt::DDP, Masters>{}.fit(dt::SomeTask<>{});
  dt::Trainer<dt::DDP, dt::Apex<dt::O3>>{}.fit(dt::SomeTask<>{});
  dt::Trainer<ZeroInfinity, dt::FP32>{}.fit(dt::SomeTask<>{});
  dt::Trainer<dt::Sharded<1>, dt::MasterWeights<dt::FP16>>{}.fit(dt::SomeTask<>{});
  dt::Trainer<dt::Sharded<1>, LocalScaler>{}.fit(dt::SomeTask<>{});
  dt::Trainer<dt::DDP, LocalScaler>{}.fit(dt::SomeTask<>{});
#endif
  dt::Trainer<Ordered, dt::FP32>{}.fit(dt::SomeTask<>{});
}
