// SPDX-License-Identifier: Apache-2.0
// A Callback and a Logger, and what each may have wrong.
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
#include "stand_in.hpp"

struct Counts {
#if DOVETAIL_BROKEN == 1
  // A hook without its argument.
  // expect: dovetail-E021: on_train_epoch_end
  void on_train_epoch_end() {}
#elif DOVETAIL_BROKEN == 2
  // A hook's name of another framework.
  // expect: dovetail-E022: on_train_batch_end is not a hook. Use on_train_step_end
  void on_train_batch_end(dt::LoopState&) {}
#elif DOVETAIL_BROKEN == 3
  // A hook's name without its on_.
  // expect: dovetail-E022: train_epoch_end is not a hook. Use on_train_epoch_end
  void train_epoch_end(dt::LoopState&) {}
#elif DOVETAIL_BROKEN == 4
  // Two near misses give one error.
  // expect: dovetail-E022: on_train_begin is not a hook. Use on_fit_start
  void on_train_begin(dt::LoopState&) {}
  void on_train_end(dt::LoopState&) {}
#else
  void on_train_epoch_end(dt::LoopState&) {}
#endif
};

struct Log {
#if DOVETAIL_BROKEN == 5
  // It wants to change the row.
  // expect: dovetail-E021: log_metrics
  void log_metrics(dt::MetricsRow&) {}
#else
  void log_metrics(const dt::MetricsRow&) {}
#endif
#if DOVETAIL_BROKEN == 6
  // The words of another framework.
  // expect: dovetail-E022: log_hyperparams is not a hook. Use log_options
  void log_hyperparams(int) {}
#endif
};

int main() {
  dt::Trainer<dt::DDP, dt::FP32> trainer;
  trainer.fit(dt::SomeTask<>{}, Counts{}, Log{});
#if DOVETAIL_BROKEN == 7
  // It has no hook at all.
  // expect: dovetail-E025
  trainer.fit(dt::SomeTask<>{}, Counts{}, std::unique_ptr<Counts>{});
#endif
}
