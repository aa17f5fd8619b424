// SPDX-License-Identifier: Apache-2.0
// Optimizers wait for a stage that is absent.
// expect: dovetail-E011
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Wraps final : dt::StrategyBase {
  static constexpr std::string_view name = "wraps";
  static constexpr dt::StrategyTraits traits{.delays_optimizer_setup = true, .wraps_model = true};
};
struct Delays final : dt::StrategyBase {
  static constexpr std::string_view name = "delays";
  static constexpr dt::StrategyTraits traits{.delays_optimizer_setup = true};
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<Delays, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<Wraps, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#endif
