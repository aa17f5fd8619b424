// SPDX-License-Identifier: Apache-2.0
// P58 bf16 has the range of fp32.
// expect: dovetail-E004
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Half final : dt::PrecisionBase {
  static constexpr std::string_view name = "half";
  static constexpr dt::PrecisionTraits traits{.scaler = dt::Scaler::collective, .compute = dt::Format::fp16};
};
struct Scaled final : dt::PrecisionBase {
  static constexpr std::string_view name = "scaled";
  static constexpr dt::PrecisionTraits traits{.scaler = dt::Scaler::collective, .compute = dt::Format::bf16};
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::DDP, Scaled>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::DDP, Half>{}.fit(dt::SomeTask<>{});
}
#endif
