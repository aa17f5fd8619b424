// SPDX-License-Identifier: Apache-2.0
// The two in each other's place.
// expect: dovetail-E012: Strategy and Precision are swapped
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::FP32, dt::DDP>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#endif
