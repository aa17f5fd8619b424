// SPDX-License-Identifier: Apache-2.0
// A forward guard that returns nothing guards nothing.
// expect: dovetail-E012: forward_guard of the Precision cannot be called
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Guard {
  ~Guard() {}
};
struct Right final : dt::PrecisionBase {
  static constexpr std::string_view name = "right";
  static constexpr dt::PrecisionTraits traits{};
  Guard forward_guard(dt::PrecisionContext&) { return {}; }
};
struct Wrong final : dt::PrecisionBase {
  static constexpr std::string_view name = "wrong";
  static constexpr dt::PrecisionTraits traits{};
  void forward_guard(dt::PrecisionContext&) {}
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
