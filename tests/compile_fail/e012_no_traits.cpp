// SPDX-License-Identifier: Apache-2.0
// A strategy that says nothing about itself.
// expect: dovetail-E012: the Strategy has no constant `traits`
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Tells final : dt::StrategyBase {
  static constexpr std::string_view name = "tells";
  static constexpr dt::StrategyTraits traits{};
};
struct Silent final : dt::StrategyBase {
  static constexpr std::string_view name = "silent";
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<Silent, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<Tells, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#endif
