// SPDX-License-Identifier: Apache-2.0
// At every level, and for gradients too.
// expect: dovetail-E002
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::Sharded<2>, dt::Apex<dt::O3>>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::Apex<dt::O3>>{}.fit(dt::SomeTask<>{});
}
#endif
