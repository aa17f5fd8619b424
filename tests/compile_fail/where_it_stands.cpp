// SPDX-License-Identifier: Apache-2.0
// A refused pair is one error where the trainer is constructed, however it is held.
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
using Precision = dt::Apex<dt::O2>;
#else
using Precision = dt::BF16Mixed;
#endif

#if DOVETAIL_BROKEN == 1 || !defined DOVETAIL_BROKEN
// expect: dovetail-E001
struct Experiment {
  dt::Trainer<dt::FSDP, Precision> trainer{{.max_epochs = 3}};
  void run() { trainer.fit(dt::SomeTask<>{}); }
};
#endif

template <class Given>
auto make() {
  return dt::Trainer<dt::FSDP, Given>{};
}

int main() {
#if DOVETAIL_BROKEN == 1 || !defined DOVETAIL_BROKEN
  Experiment{}.run();
#endif
#if DOVETAIL_BROKEN == 2 || !defined DOVETAIL_BROKEN
  // expect: dovetail-E001
  std::optional<dt::Trainer<dt::FSDP, Precision>> maybe;
  maybe.emplace();
  maybe->fit(dt::SomeTask<>{});
#endif
#if DOVETAIL_BROKEN == 3 || !defined DOVETAIL_BROKEN
  // expect: dovetail-E001
  auto returned = make<Precision>();
  returned.fit(dt::SomeTask<>{});
#endif
#if DOVETAIL_BROKEN == 4 || !defined DOVETAIL_BROKEN
  // expect: dovetail-E001
  dt::Trainer<dt::FSDP, Precision>{{.max_epochs = 3}, dt::FSDP{{.prefetch = 2}}}.fit(dt::SomeTask<>{});
#endif
#if DOVETAIL_BROKEN == 5 || !defined DOVETAIL_BROKEN
  // expect: dovetail-E001
  auto held = std::make_unique<dt::Trainer<dt::FSDP, Precision>>();
  held->fit(dt::SomeTask<>{});
#endif
}
