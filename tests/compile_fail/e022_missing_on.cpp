// SPDX-License-Identifier: Apache-2.0
// A hook's name without its on_.
// expect: dovetail-E022: train_epoch_end is not a hook. Use on_train_epoch_end
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Counts {
  void on_train_epoch_end(dt::LoopState&) {}
};
struct Near {
  void train_epoch_end(dt::LoopState&) {}
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
