// SPDX-License-Identifier: Apache-2.0
// Each rank would decide alone whether it skips a step.
// expect: dovetail-E003
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct LocalScaler final : dt::PrecisionBase {
  static constexpr std::string_view name = "localscaler";
  static constexpr dt::PrecisionTraits traits{.scaler = dt::Scaler::local, .compute = dt::Format::fp16};
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::Sharded<2>, LocalScaler>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::Sharded<1>, LocalScaler>{}.fit(dt::SomeTask<>{});
}
#endif
