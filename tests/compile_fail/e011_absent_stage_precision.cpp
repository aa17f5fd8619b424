// SPDX-License-Identifier: Apache-2.0
// The same for a precision; E011 comes before E001.
// expect: dovetail-E011
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Present final : dt::PrecisionBase {
  static constexpr std::string_view name = "present";
  static constexpr dt::PrecisionTraits traits{.wraps_optimizers = true,
                                              .order = {{dt::Stage::wrap_model, dt::Stage::wrap_optimizers}}};
};
struct Absent final : dt::PrecisionBase {
  static constexpr std::string_view name = "absent";
  static constexpr dt::PrecisionTraits traits{.order = {{dt::Stage::wrap_optimizers, dt::Stage::wrap_model}}};
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::FSDP, Absent>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::FSDP, Present>{}.fit(dt::SomeTask<>{});
}
#endif
