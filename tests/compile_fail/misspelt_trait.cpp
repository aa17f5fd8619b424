// SPDX-License-Identifier: Apache-2.0
// A misspelt trait is an error in the line where it is written, by the compiler itself.
// expect: wrap_model
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
struct Mine final : dt::StrategyBase {
  static constexpr std::string_view name = "mine";
  static constexpr dt::StrategyTraits traits{.wrap_model = true};
};
#else
struct Mine final : dt::StrategyBase {
  static constexpr std::string_view name = "mine";
  static constexpr dt::StrategyTraits traits{.wraps_model = true};
};
int main() {
  dt::Trainer<Mine, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#endif
