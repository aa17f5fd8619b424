// SPDX-License-Identifier: Apache-2.0
// The trainer is a member; the error is where the member is constructed.
// expect: dovetail-E001
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
struct Experiment {
  dt::Trainer<dt::FSDP, dt::Apex<dt::O2>> trainer{{.max_epochs = 3}};
  void run() { trainer.fit(dt::SomeTask<>{}); }
};
int main() {
  Experiment{}.run();
}
#else
struct Experiment {
  dt::Trainer<dt::FSDP, dt::BF16Mixed> trainer{{.max_epochs = 3}};
  void run() { trainer.fit(dt::SomeTask<>{}); }
};
int main() {
  Experiment{}.run();
}
#endif
