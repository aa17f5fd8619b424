// SPDX-License-Identifier: Apache-2.0
// Two optimizers, where the strategy takes one.
// expect: dovetail-E008
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct OneOptimizer final : dt::StrategyBase {
  static constexpr std::string_view name = "oneoptimizer";
  static constexpr dt::StrategyTraits traits{.max_optimizers = 1};
};
using Two = std::pair<dt::SomeAdamW, dt::SomeAdamW>;

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<OneOptimizer, dt::FP32>{}.fit(dt::SomeTask<Two>{});
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<Two>{});
}
#endif
