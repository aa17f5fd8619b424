// SPDX-License-Identifier: Apache-2.0
// An option that is not implemented does not exist.
// expect: static_graph
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

#ifdef DOVETAIL_BROKEN
int main() {
  dt::DDP::Options options{.static_graph = true};
  return options.bucket_mb;
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{{}, dt::DDP{{.bucket_mb = 5}}}.fit(dt::SomeTask<>{});
}
#endif
