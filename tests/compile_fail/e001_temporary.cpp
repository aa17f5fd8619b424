// SPDX-License-Identifier: Apache-2.0
// The trainer is a temporary, with options.
// expect: dovetail-E001
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::FSDP, dt::Apex<dt::O2>>{{.max_epochs = 3}, dt::FSDP{{.prefetch = 2}}}.fit(dt::SomeTask<>{});
}
#else
int main() {
  dt::Trainer<dt::FSDP, dt::BF16Mixed>{{.max_epochs = 3}, dt::FSDP{{.prefetch = 2}}}.fit(dt::SomeTask<>{});
}
#endif
