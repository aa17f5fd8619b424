// SPDX-License-Identifier: Apache-2.0
// An edge on a stage that the strategy lacks.
// expect: dovetail-E011
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Present final : dt::StrategyBase {
  static constexpr std::string_view name = "present";
  static constexpr dt::StrategyTraits traits{.wraps_model = true,
                                             .order = {{dt::Stage::wrap_model, dt::Stage::bind_schedulers}}};
};
struct Absent final : dt::StrategyBase {
  static constexpr std::string_view name = "absent";
  static constexpr dt::StrategyTraits traits{.order = {{dt::Stage::wrap_model, dt::Stage::bind_schedulers}}};
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<Absent, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<Present, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#endif
