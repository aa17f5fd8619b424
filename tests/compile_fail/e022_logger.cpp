// SPDX-License-Identifier: Apache-2.0
// A Logger in the words of another framework.
// expect: dovetail-E022: log_hyperparams is not a hook. Use log_options
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Log {
  void log_metrics(const dt::MetricsRow&) {}
};
struct Near {
  void log_metrics(const dt::MetricsRow&) {}
  void log_hyperparams(int) {}
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<>{}, Near{});
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<>{}, Log{});
}
#endif
