// SPDX-License-Identifier: Apache-2.0
// A user's precision that wraps full parameters is refused with FSDP.
// expect: dovetail-E001
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Masters final : dt::PrecisionBase {
  static constexpr std::string_view name = "masters";
  static constexpr dt::PrecisionTraits traits{.wraps_optimizers = true, .wraps_full_parameters = true};
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::FSDP, Masters>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::DDP, Masters>{}.fit(dt::SomeTask<>{});
}
#endif
