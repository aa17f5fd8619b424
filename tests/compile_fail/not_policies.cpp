// SPDX-License-Identifier: Apache-2.0
// What is no policy, or stands in the wrong place.
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
#include "stand_in.hpp"

struct Anything {};

int main() {
#if DOVETAIL_BROKEN == 1
  // expect: dovetail-E012: the first argument is not a Strategy
  dt::Trainer<Anything, dt::FP32>{}.fit(dt::SomeTask<>{});
#elif DOVETAIL_BROKEN == 2
  // T30 Two strategies.
  // expect: dovetail-E012: the second argument is not a Precision
  dt::Trainer<dt::DDP, dt::FSDP>{}.fit(dt::SomeTask<>{});
#elif DOVETAIL_BROKEN == 3
  // expect: dovetail-E012: Strategy and Precision are swapped
  dt::Trainer<dt::FP32, dt::DDP>{}.fit(dt::SomeTask<>{});
#elif DOVETAIL_BROKEN == 4
  // expect: dovetail-E012: a number format is not a Precision
  dt::Trainer<dt::DDP, dt::BF16>{}.fit(dt::SomeTask<>{});
#elif DOVETAIL_BROKEN == 5
  // expect: dovetail-E012: a number format is not a Precision
  dt::Trainer<dt::DDP, float>{}.fit(dt::SomeTask<>{});
#elif DOVETAIL_BROKEN == 6
  // expect: dovetail-E012: an optimization level is not a Precision
  dt::Trainer<dt::DDP, dt::O2>{}.fit(dt::SomeTask<>{});
#elif DOVETAIL_BROKEN == 7
  // Apex takes a level, MasterWeights a format.
  // expect: dovetail-E012: the Precision does not take this template argument
  dt::Trainer<dt::DDP, dt::Apex<dt::BF16>>{}.fit(dt::SomeTask<>{});
#elif DOVETAIL_BROKEN == 8
  // expect: dovetail-E012: the Strategy does not take this template argument
  dt::Trainer<dt::Sharded<3>, dt::FP32>{}.fit(dt::SomeTask<>{});
#else
  dt::Trainer<dt::DDP, dt::BF16Mixed>{}.fit(dt::SomeTask<>{});
  dt::Trainer<dt::DDP, dt::Apex<dt::O1>>{}.fit(dt::SomeTask<>{});
  dt::Trainer<dt::Sharded<2>, dt::FP32>{}.fit(dt::SomeTask<>{});
#endif
}
