// SPDX-License-Identifier: Apache-2.0
// A precision with the name of another framework for its guard.
// expect: dovetail-E022: forward_context is not a hook. Use forward_guard.
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Right final : dt::PrecisionBase {
  static constexpr std::string_view name = "right";
  static constexpr dt::PrecisionTraits traits{};
  int forward_guard(dt::PrecisionContext&) { return 0; }
};
struct Wrong final : dt::PrecisionBase {
  static constexpr std::string_view name = "wrong";
  static constexpr dt::PrecisionTraits traits{};
  int forward_context(dt::PrecisionContext&) { return 0; }
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
