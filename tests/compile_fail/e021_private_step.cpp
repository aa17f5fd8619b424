// SPDX-License-Identifier: Apache-2.0
// A step that is not public.
// expect: dovetail-E021: training_step
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Whole {
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  auto configure_optimizers(const dt::Parameters&) const { return dt::SomeAdamW{}; }
  dt::Tensor training_step(dt::Net&, const dt::Batch&, dt::StepContext&) const { return {}; }
};
class Hidden {
 public:
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  auto configure_optimizers(const dt::Parameters&) const { return dt::SomeAdamW{}; }

 private:
  [[maybe_unused]] dt::Tensor training_step(dt::Net&, const dt::Batch&, dt::StepContext&) const { return {}; }
};

#ifdef DOVETAIL_BROKEN
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(Hidden{});
}
#else
int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(Whole{});
}
#endif
