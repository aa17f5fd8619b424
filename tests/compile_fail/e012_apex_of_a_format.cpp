// SPDX-License-Identifier: Apache-2.0
// Apex takes a level, MasterWeights a format.
// expect: dovetail-E012: the Precision does not take this template argument
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::DDP, dt::Apex<dt::BF16>>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::Apex<dt::O1>>{}.fit(dt::SomeTask<>{});
}
#endif
