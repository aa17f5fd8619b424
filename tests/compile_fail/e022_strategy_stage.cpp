// SPDX-License-Identifier: Apache-2.0
// A misspelt stage of a strategy.
// expect: dovetail-E022: wrap_modle is not a hook. Use wrap_model.
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Right final : dt::StrategyBase {
  static constexpr std::string_view name = "right";
  static constexpr dt::StrategyTraits traits{.wraps_model = true};
  void wrap_model(dt::StrategyContext&) {}
};
struct Wrong final : dt::StrategyBase {
  static constexpr std::string_view name = "wrong";
  static constexpr dt::StrategyTraits traits{.wraps_model = true};
  void wrap_modle(dt::StrategyContext&) {}
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
