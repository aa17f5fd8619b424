// SPDX-License-Identifier: Apache-2.0
// A misspelt hook of a strategy would hide nothing and never be called.
// expect: dovetail-E022: befor_forward is not a hook. Use before_forward.
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Right final : dt::StrategyBase {
  static constexpr std::string_view name = "right";
  static constexpr dt::StrategyTraits traits{};
  void before_forward(dt::StrategyContext&) {}
};
struct Wrong final : dt::StrategyBase {
  static constexpr std::string_view name = "wrong";
  static constexpr dt::StrategyTraits traits{};
  void befor_forward(dt::StrategyContext&) {}
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
