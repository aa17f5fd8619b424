// SPDX-License-Identifier: Apache-2.0
// Traits that are a member of objects, not a constant of the type.
// expect: dovetail-E012: the Strategy has no constant `traits`
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Right final : dt::StrategyBase {
  static constexpr std::string_view name = "right";
  static constexpr dt::StrategyTraits traits{};
};
struct Wrong final : dt::StrategyBase {
  static constexpr std::string_view name = "wrong";
  dt::StrategyTraits traits{};
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<Wrong, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<Right, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#endif
