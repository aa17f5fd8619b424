// SPDX-License-Identifier: Apache-2.0
// A number format where a precision belongs.
// expect: dovetail-E012: a number format is not a Precision
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::DDP, dt::BF16>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::BF16Mixed>{}.fit(dt::SomeTask<>{});
}
#endif
