// SPDX-License-Identifier: Apache-2.0
// Errors that the compiler finds by itself stay the one error, where the user wrote them.
// forbid: no matching function
// forbid: constraints not satisfied
#include "stand_in.hpp"

#if DOVETAIL_BROKEN == 1
// A misspelt trait.
// expect: wrap_model
constexpr dt::StrategyTraits traits{.wrap_model = true};
#else
constexpr dt::StrategyTraits traits{.wraps_model = true};
#endif

struct Task {
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  auto configure_optimizers(const dt::Parameters&) const { return dt::SomeAdamW{}; }
  auto training_step(auto& net, const dt::Batch&, dt::StepContext&) const {
#if DOVETAIL_BROKEN == 2
    // expect: the user's own words
    static_assert(sizeof(net) > 99, "the user's own words");
#elif DOVETAIL_BROKEN == 3
    // expect: no_such_member
    net.no_such_member();
#endif
    (void)net;
    return dt::Tensor{};
  }
};

struct PlainTask {
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  auto configure_optimizers(const dt::Parameters&) const { return dt::SomeAdamW{}; }
  auto training_step(dt::Net&, const dt::Batch&, dt::StepContext&) const {  // the return type is deduced
#if DOVETAIL_BROKEN == 4
    // expect: no_such_function
    no_such_function();
#endif
    return dt::Tensor{};
  }
};

int main() {
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(Task{});
  dt::Trainer<dt::DDP, dt::FP32>{}.fit(PlainTask{});
#if DOVETAIL_BROKEN == 5
  // An option that is not implemented does not exist.
  // expect: static_graph
  return dt::DDP::Options{.static_graph = true}.bucket_mb;
#else
  return dt::DDP::Options{.bucket_mb = traits.wraps_model ? 5 : 1}.bucket_mb;
#endif
}
