// SPDX-License-Identifier: Apache-2.0
// The trainer is returned from a function template.
// expect: dovetail-E001
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
template <class Precision>
auto make() {
  return dt::Trainer<dt::FSDP, Precision>{};
}
int main() {
  auto trainer = make<dt::Apex<dt::O2>>();
  trainer.fit(dt::SomeTask<>{});
}
#else
template <class Precision>
auto make() {
  return dt::Trainer<dt::FSDP, Precision>{};
}
int main() {
  auto trainer = make<dt::BF16Mixed>();
  trainer.fit(dt::SomeTask<>{});
}
#endif
