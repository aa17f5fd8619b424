// SPDX-License-Identifier: Apache-2.0
// A strategy of one's own that cuts tensors; Sharded keeps them whole for such an optimizer.
// expect: dovetail-E006
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct CutsTensors final : dt::StrategyBase {
  static constexpr std::string_view name = "cuts-tensors";
  static constexpr dt::StrategyTraits traits{.cuts_tensors = true};
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<CutsTensors, dt::FP32>{}.fit(dt::SomeTask<dt::SomeMuon>{});
}
#else
int main() {
  dt::Trainer<CutsTensors, dt::FP32>{}.fit(dt::SomeTask<dt::SomeAdamW>{});
  dt::Trainer<dt::Sharded<1>, dt::FP32>{}.fit(dt::SomeTask<dt::SomeMuon>{});
}
#endif
