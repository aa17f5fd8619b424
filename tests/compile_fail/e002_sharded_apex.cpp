// SPDX-License-Identifier: Apache-2.0
// T28 P50 An order exists, but a rank would keep masters of tensors that it does not own.
// expect: dovetail-E002
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::Sharded<1>, dt::Apex<dt::O2>>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::Sharded<1>, dt::MasterWeights<dt::FP16>>{}.fit(dt::SomeTask<>{});
}
#endif
