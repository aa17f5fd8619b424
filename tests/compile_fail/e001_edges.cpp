// SPDX-License-Identifier: Apache-2.0
// An edge of a user's policy against placing a model after converting it: a cycle of three.
// expect: dovetail-E001: no set-up order fits both policies: the policies' orders contradict each other
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct ConvertsLate final : dt::StrategyBase {
  static constexpr std::string_view name = "convertslate";
  static constexpr dt::StrategyTraits traits{.wraps_model = true,
                                             .order = {{dt::Stage::wrap_model, dt::Stage::convert_model}}};
};
struct WrapsLate final : dt::StrategyBase {
  static constexpr std::string_view name = "wrapslate";
  static constexpr dt::StrategyTraits traits{.wraps_model = true,
                                             .order = {{dt::Stage::bind_schedulers, dt::Stage::wrap_model}}};
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<ConvertsLate, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<WrapsLate, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#endif
