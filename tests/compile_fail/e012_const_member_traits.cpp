// SPDX-License-Identifier: Apache-2.0
// Traits that are a constant of each object, not of the type.
// expect: dovetail-E012: the Precision has no constant `traits`
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Right final : dt::PrecisionBase {
  static constexpr std::string_view name = "right";
  static constexpr dt::PrecisionTraits traits{};
};
struct Wrong final : dt::PrecisionBase {
  static constexpr std::string_view name = "wrong";
  const dt::PrecisionTraits traits{};
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::DDP, Wrong>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::DDP, Right>{}.fit(dt::SomeTask<>{});
}
#endif
