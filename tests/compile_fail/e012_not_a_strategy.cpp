// SPDX-License-Identifier: Apache-2.0
// Something else where a strategy belongs.
// expect: dovetail-E012: the first argument is not a Strategy
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Anything {};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<Anything, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#endif
