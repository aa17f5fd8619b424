// SPDX-License-Identifier: Apache-2.0
// Wraps full parameters, but no optimizers.
// expect: dovetail-E011
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Both final : dt::PrecisionBase {
  static constexpr std::string_view name = "both";
  static constexpr dt::PrecisionTraits traits{.wraps_optimizers = true, .wraps_full_parameters = true};
};
struct Half final : dt::PrecisionBase {
  static constexpr std::string_view name = "half";
  static constexpr dt::PrecisionTraits traits{.wraps_full_parameters = true};
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::DDP, Half>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::DDP, Both>{}.fit(dt::SomeTask<>{});
}
#endif
