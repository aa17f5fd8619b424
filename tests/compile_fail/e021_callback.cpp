// SPDX-License-Identifier: Apache-2.0
// A hook of a Callback without its argument.
// expect: dovetail-E021: on_train_epoch_end
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Counts {
  void on_train_epoch_end(dt::LoopState&) {}
};
struct Wrong {
  void on_train_epoch_end() {}
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<>{}, Wrong{});
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<>{}, Counts{});
}
#endif
