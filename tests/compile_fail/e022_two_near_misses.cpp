// SPDX-License-Identifier: Apache-2.0
// Two near misses give one error.
// expect: dovetail-E022: on_train_begin is not a hook. Use on_fit_start
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Counts {
  void on_train_epoch_end(dt::LoopState&) {}
};
struct Near {
  void on_train_begin(dt::LoopState&) {}
  void on_train_end(dt::LoopState&) {}
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<>{}, Near{});
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<>{}, Counts{});
}
#endif
