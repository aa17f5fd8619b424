// SPDX-License-Identifier: Apache-2.0
// An optimizer over whole matrices gets parts of them.
// expect: dovetail-E006
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::FSDP, dt::FP32>{}.fit(dt::SomeTask<dt::SomeMuon>{});
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<dt::SomeMuon>{});
}
#endif
