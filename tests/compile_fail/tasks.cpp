// SPDX-License-Identifier: Apache-2.0
// A Task, and what each of its functions may have wrong.
// forbid: no member named
// forbid: no matching function
// forbid: constraints not satisfied
#include "stand_in.hpp"

namespace dovetail {
class LoopState {
 public:
  LoopState(const LoopState&) = delete;
};
}  // namespace dovetail

struct OtherNet {};

struct Task {
#if DOVETAIL_BROKEN == 1
  // T13 A Task without a model.
  // expect: dovetail-E020: the Task has no configure_model
#elif DOVETAIL_BROKEN == 2
  // Nobody owns a model behind a plain pointer.
  // expect: dovetail-E023
  auto configure_model() const {
    return new dt::Net;
  }
#elif DOVETAIL_BROKEN == 3
  // A model by value would be trained as a copy.
  // expect: dovetail-E023
  auto configure_model() const {
    return dt::Net{};
  }
#else
  auto configure_model() const {
    return std::make_shared<dt::Net>();
  }
#endif

#if DOVETAIL_BROKEN == 4
  // expect: dovetail-E020: the Task has no configure_optimizers
#else
  auto configure_optimizers(const dt::Parameters&) const {
    return dt::SomeAdamW{};
  }
#endif

#if DOVETAIL_BROKEN == 5
  // expect: dovetail-E020: the Task has no training_step
#elif DOVETAIL_BROKEN == 6
  // Over another model than configure_model makes.
  // expect: dovetail-E021: training_step
  dt::Tensor training_step(OtherNet&, const dt::Batch&, dt::StepContext&) const {
    return {};
  }
#elif DOVETAIL_BROKEN == 7
  // It wants to change the batch.
  // expect: dovetail-E021: training_step
  dt::Tensor training_step(dt::Net&, dt::Batch&, dt::StepContext&) const {
    return {};
  }
#elif DOVETAIL_BROKEN == 8
  // It would train a copy.
  // expect: dovetail-E021: a step takes the model by value
  dt::Tensor training_step(dt::Net, const dt::Batch&, dt::StepContext&) const {
    return {};
  }
#elif DOVETAIL_BROKEN == 9
  // expect: dovetail-E021: a step takes the model by value
  auto training_step(auto, const dt::Batch&, dt::StepContext&) const {
    return dt::Tensor{};
  }
#elif DOVETAIL_BROKEN == 10
  // It is not public.
  // expect: dovetail-E021: training_step
 private:
  [[maybe_unused]] dt::Tensor training_step(dt::Net&, const dt::Batch&, dt::StepContext&) const {
    return {};
  }

 public:
#elif DOVETAIL_BROKEN == 11
  // expect: dovetail-E024
  void training_step(dt::Net&, const dt::Batch&, dt::StepContext&) const {}
#elif DOVETAIL_BROKEN == 12
  // The near miss explains more than the missing step.
  // expect: dovetail-E022: train_step is not a hook. Use training_step
  dt::Tensor train_step(dt::Net&, const dt::Batch&, dt::StepContext&) const {
    return {};
  }
#else
  dt::Tensor training_step(dt::Net&, const dt::Batch&, dt::StepContext&) const {
    return {};
  }
#endif

#if DOVETAIL_BROKEN == 13
  // An optional step with other arguments would silently not run.
  // expect: dovetail-E021: validation_step
  void validation_step(dt::Net&, dt::StepContext&) const {}
#elif DOVETAIL_BROKEN == 14
  // What a step logs on a copy of its context is lost.
  // expect: dovetail-E021: validation_step is there, but cannot be called
  void validation_step(dt::Net&, const dt::Batch&, dt::StepContext) const {}
#elif DOVETAIL_BROKEN == 15
  // It would silently never be called.
  // expect: dovetail-E022: val_step is not a hook. Use validation_step
  void val_step(dt::Net&, const dt::Batch&, dt::StepContext&) const {}
#else
  void validation_step(dt::Net&, const dt::Batch&, dt::StepContext&) const {}
#endif

#if DOVETAIL_BROKEN == 16
  // What takes the state by value cannot ask for a stop.
  // expect: dovetail-E021: on_fit_start is there, but cannot be called
  void on_fit_start(dt::LoopState) {}
#elif DOVETAIL_BROKEN == 17
  // Two overloads, and neither fits.
  // expect: dovetail-E021: on_fit_end
  void on_fit_end(int) {}
  void on_fit_end(double, int) {}
#elif DOVETAIL_BROKEN == 18
  // expect: dovetail-E022: a hook of a Callback
  void on_train_step_end(dt::LoopState&) {}
#else
  void on_fit_start(dt::LoopState&) {}
#endif
};

/// What is as good: generic steps, a model that stays as it is, a batch of one's own.
struct Generic {
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  auto configure_optimizers(const dt::Parameters&) const { return dt::SomeAdamW{}; }
  auto training_step(auto& net, const auto&, auto&) const {
    (void)net;
    return dt::Tensor{};
  }
};
struct Careful {
  auto configure_model() const { return std::make_shared<dt::Net>(); }
  auto configure_optimizers(const dt::Parameters&) const { return dt::SomeAdamW{}; }
  dt::Tensor training_step(const dt::Net&, dt::Batch, dt::StepContext&) const { return {}; }
  template <class Net>
  void validation_step(Net&, const dt::Batch&, dt::StepContext&) const {}
};

int main() {
  dt::Trainer<dt::DDP, dt::FP32> trainer;
  trainer.fit(Task{});
  trainer.fit(Generic{});
  trainer.fit(Careful{});
#if DOVETAIL_BROKEN == 19
  // Something that is no Task.
  // expect: dovetail-E020
  trainer.fit(int{});
#endif
}
