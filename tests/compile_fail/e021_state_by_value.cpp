// SPDX-License-Identifier: Apache-2.0
// A moment that takes the state by value cannot ask for a stop.
// expect: dovetail-E021: on_fit_start is there, but cannot be called
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

namespace dovetail {
class LoopState {
 public:
  LoopState(const LoopState&) = delete;
};
}  // namespace dovetail

struct Whole {
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  auto configure_optimizers(const dt::Parameters&) const { return dt::SomeAdamW{}; }
  dt::Tensor training_step(dt::Net&, const dt::Batch&, dt::StepContext&) const { return {}; }
  void on_fit_start(dt::LoopState&) {}
};
struct Wrong {
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  auto configure_optimizers(const dt::Parameters&) const { return dt::SomeAdamW{}; }
  dt::Tensor training_step(dt::Net&, const dt::Batch&, dt::StepContext&) const { return {}; }
  void on_fit_start(dt::LoopState) {}
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
