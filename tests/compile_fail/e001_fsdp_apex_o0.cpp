// SPDX-License-Identifier: Apache-2.0
// Apex is one family for the order: every level is refused.
// expect: dovetail-E001
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::FSDP, dt::Apex<dt::O0>>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::FSDP, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#endif
