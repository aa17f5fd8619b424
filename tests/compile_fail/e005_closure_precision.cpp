// SPDX-License-Identifier: Apache-2.0
// LBFGS evaluates the loss several times in a step, a scaler does not let it.
// expect: dovetail-E005
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::DDP, dt::FP16Mixed>{}.fit(dt::SomeTask<dt::SomeLBFGS>{});
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<dt::SomeLBFGS>{});
}
#endif
