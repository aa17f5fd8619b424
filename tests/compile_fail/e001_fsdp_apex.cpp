// SPDX-License-Identifier: Apache-2.0
// T28 P50 FSDP makes optimizers after wrapping the model, Apex wraps them before.
// expect: dovetail-E001
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::FSDP, dt::Apex<dt::O2>>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::FSDP, dt::MasterWeights<dt::FP16>>{}.fit(dt::SomeTask<>{});
}
#endif
