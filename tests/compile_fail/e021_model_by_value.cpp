// SPDX-License-Identifier: Apache-2.0
// A step that takes the model by value would train a copy.
// expect: dovetail-E021: a step takes the model by value
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Whole {
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  auto configure_optimizers(const dt::Parameters&) const { return dt::SomeAdamW{}; }
  dt::Tensor training_step(const dt::Net&, dt::Batch, dt::StepContext&) const { return {}; }
  template <class Net>
  void validation_step(Net&, const dt::Batch&, dt::StepContext&) const {}
};
struct Wrong {
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  auto configure_optimizers(const dt::Parameters&) const { return dt::SomeAdamW{}; }
  dt::Tensor training_step(dt::Net, const dt::Batch&, dt::StepContext&) const { return {}; }
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
