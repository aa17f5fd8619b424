// SPDX-License-Identifier: Apache-2.0
// A hook that is not called in each step is one all the same.
// expect: dovetail-E012: a hook of the Strategy cannot be called
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Right final : dt::StrategyBase {
  static constexpr std::string_view name = "right";
  static constexpr dt::StrategyTraits traits{};
  void attach_gradients(dt::StrategyContext&) {}
  void finish_forward(dt::StrategyContext&) {}
};
struct Wrong final : dt::StrategyBase {
  static constexpr std::string_view name = "wrong";
  static constexpr dt::StrategyTraits traits{};
  void attach_gradients(dt::StrategyContext&) {}
  void finish_forward() {}
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
