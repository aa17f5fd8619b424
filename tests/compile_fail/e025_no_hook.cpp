// SPDX-License-Identifier: Apache-2.0
// An argument of fit that has no hook at all.
// expect: dovetail-E025
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Counts {
  void on_train_epoch_end(dt::LoopState&) {}
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<>{}, Counts{}, std::unique_ptr<Counts>{});
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<>{}, Counts{});
}
#endif
