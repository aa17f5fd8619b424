// SPDX-License-Identifier: Apache-2.0
// The trainer sits in a unique_ptr.
// expect: dovetail-E001
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
int main() {
  auto trainer = std::make_unique<dt::Trainer<dt::FSDP, dt::Apex<dt::O2>>>();
  trainer->fit(dt::SomeTask<>{});
}
#else
int main() {
  auto trainer = std::make_unique<dt::Trainer<dt::FSDP, dt::BF16Mixed>>();
  trainer->fit(dt::SomeTask<>{});
}
#endif
