// SPDX-License-Identifier: Apache-2.0
// A mistake in the body of a generic step stays the one error.
// expect: no_such_member
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Whole {
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  auto configure_optimizers(const dt::Parameters&) const { return dt::SomeAdamW{}; }
  dt::Tensor training_step(dt::Net&, const dt::Batch&, dt::StepContext&) const { return {}; }
};
struct Wrong {
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  auto configure_optimizers(const dt::Parameters&) const { return dt::SomeAdamW{}; }
  auto training_step(auto& net, const dt::Batch&, dt::StepContext&) const {
#ifdef DOVETAIL_BROKEN
    net.no_such_member();
#endif
    (void)net;
    return dt::Tensor{};
  }
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
