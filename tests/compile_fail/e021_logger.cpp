// SPDX-License-Identifier: Apache-2.0
// A Logger that wants to change the row.
// expect: dovetail-E021: log_metrics
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Log {
  void log_metrics(const dt::MetricsRow&) {}
};
struct Wrong {
  void log_metrics(dt::MetricsRow&) {}
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<>{}, Wrong{});
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(dt::SomeTask<>{}, Log{});
}
#endif
