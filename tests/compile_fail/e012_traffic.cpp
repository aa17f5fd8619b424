// SPDX-License-Identifier: Apache-2.0
// Traffic that is told by a number would never be asked for.
// expect: dovetail-E012: traffic of the Strategy cannot be asked for
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

namespace dovetail {
struct StepTraffic {};
struct StepShape {};
}  // namespace dovetail

struct Right final : dt::StrategyBase {
  static constexpr std::string_view name = "right";
  static constexpr dt::StrategyTraits traits{};
  dt::StepTraffic traffic(const dt::StepShape&) const { return {}; }
};
struct Wrong final : dt::StrategyBase {
  static constexpr std::string_view name = "wrong";
  static constexpr dt::StrategyTraits traits{};
  long traffic(const dt::StepShape&) const { return 0; }
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
