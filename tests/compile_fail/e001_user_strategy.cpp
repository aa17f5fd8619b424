// SPDX-License-Identifier: Apache-2.0
// A user's strategy that delays optimizers is refused with Apex without knowing of it.
// expect: dovetail-E001
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct ZeroInfinity final : dt::StrategyBase {
  static constexpr std::string_view name = "zeroinfinity";
  static constexpr dt::StrategyTraits traits{.delays_optimizer_setup = true, .wraps_model = true};
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<ZeroInfinity, dt::Apex<dt::O2>>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<ZeroInfinity, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#endif
