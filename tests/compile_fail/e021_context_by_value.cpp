// SPDX-License-Identifier: Apache-2.0
// What a step logs on a copy of its context is lost.
// expect: dovetail-E021: validation_step is there, but cannot be called
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Whole {
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  auto configure_optimizers(const dt::Parameters&) const { return dt::SomeAdamW{}; }
  dt::Tensor training_step(dt::Net&, const dt::Batch&, dt::StepContext&) const { return {}; }
  void validation_step(dt::Net&, const dt::Batch&, dt::StepContext&) const {}
};
struct Wrong {
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  auto configure_optimizers(const dt::Parameters&) const { return dt::SomeAdamW{}; }
  dt::Tensor training_step(dt::Net&, const dt::Batch&, dt::StepContext&) const { return {}; }
  void validation_step(dt::Net&, const dt::Batch&, dt::StepContext) const {}
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(Wrong{});
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(Whole{});
}
#endif
