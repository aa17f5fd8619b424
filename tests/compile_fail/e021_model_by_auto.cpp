// SPDX-License-Identifier: Apache-2.0
// A generic step that takes the model by value.
// expect: dovetail-E021: a step takes the model by value
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
// max-lines: 14
#include "stand_in.hpp"

struct Whole {
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  auto configure_optimizers(const dt::Parameters&) const { return dt::SomeAdamW{}; }
  auto training_step(auto& net, const auto&, auto&) const {
    (void)net;
    return dt::Tensor{};
  }
};
struct Wrong {
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  auto configure_optimizers(const dt::Parameters&) const { return dt::SomeAdamW{}; }
  auto training_step(auto, const dt::Batch&, dt::StepContext&) const { return dt::Tensor{}; }
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
