// SPDX-License-Identifier: Apache-2.0
// LBFGS under FSDP: E005 comes before E006.
// expect: dovetail-E005
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::FSDP, dt::FP32>{}.fit(dt::SomeTask<dt::SomeLBFGS>{});
}
#else
int main() {
  dt::Trainer<dt::SingleDevice, dt::FP32>{}.fit(dt::SomeTask<dt::SomeLBFGS>{});
}
#endif
