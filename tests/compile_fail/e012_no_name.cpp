// SPDX-License-Identifier: Apache-2.0
// A strategy without a name.
// expect: dovetail-E012: the Strategy has no name
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Named final : dt::StrategyBase {
  static constexpr std::string_view name = "named";
  static constexpr dt::StrategyTraits traits{};
};
struct Unnamed final : dt::StrategyBase {
  static constexpr dt::StrategyTraits traits{};
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<Unnamed, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<Named, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#endif
