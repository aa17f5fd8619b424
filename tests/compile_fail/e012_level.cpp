// SPDX-License-Identifier: Apache-2.0
// A level of Apex where a precision belongs.
// expect: dovetail-E012: an optimization level is not a Precision
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::DDP, dt::O2>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::Apex<dt::O2>>{}.fit(dt::SomeTask<>{});
}
#endif
