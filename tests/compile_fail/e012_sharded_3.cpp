// SPDX-License-Identifier: Apache-2.0
// A level that Sharded does not have.
// expect: dovetail-E012: the Strategy does not take this template argument
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::Sharded<3>, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::Sharded<2>, dt::FP32>{}.fit(dt::SomeTask<>{});
}
#endif
