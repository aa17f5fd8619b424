// SPDX-License-Identifier: Apache-2.0
// A hook of a Precision would never be called in a Strategy.
// expect: dovetail-E022: forward_guard is a hook of a Precision, not of a Strategy. Use a Precision.
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Guard {
  ~Guard() {}
};
struct Guarding final : dt::PrecisionBase {
  static constexpr std::string_view name = "guarding";
  static constexpr dt::PrecisionTraits traits{};
  Guard forward_guard(dt::PrecisionContext&) { return {}; }
};
struct Wrong final : dt::StrategyBase {
  static constexpr std::string_view name = "wrong";
  static constexpr dt::StrategyTraits traits{};
  Guard forward_guard(dt::StrategyContext&) { return {}; }
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<Wrong, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::DDP, Guarding>{}.fit(dt::SomeTask<>{});
}
#endif
