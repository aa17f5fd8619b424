// SPDX-License-Identifier: Apache-2.0
// The trainer sits in an optional; the error is where it is constructed.
// expect: dovetail-E001
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
int main() {
  std::optional<dt::Trainer<dt::FSDP, dt::Apex<dt::O2>>> trainer;
  trainer.emplace();
  trainer->fit(dt::SomeTask<>{});
}
#else
int main() {
  std::optional<dt::Trainer<dt::FSDP, dt::BF16Mixed>> trainer;
  trainer.emplace();
  trainer->fit(dt::SomeTask<>{});
}
#endif
