// SPDX-License-Identifier: Apache-2.0
// What follows backward in a step with clipping (look at what arrived, norm, clip, AdamW, zero the gradients), for
// 10,000 tensors of 64 elements and for the same bytes in one tensor: how many times longer the many take. Both go
// through what a run does, in one process, one thread, interleaved. Printed: the median of the ratios of neighbouring
// steps, with the middle half of them.

#include <dovetail/loop/clip_gradients.hpp>
#include <dovetail/optim/adamw.hpp>
#include <dovetail/precision/fp32.hpp>
#include <dovetail/run/bind.hpp>
#include <dovetail/run/dense.hpp>
#include <dovetail/strategy/single_device.hpp>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

namespace dt = dovetail;

struct Model : torch::nn::Module {
  Model(int count, int64_t elements) {
    for (int i = 0; i < count; ++i) register_parameter("p" + std::to_string(i), torch::randn({elements}));
  }
};

/// One device, with clipping: set up as the trainer does it.
class Tail {
 public:
  Tail(int count, int64_t elements)
      : run_({.gradient_clip = dt::clip_norm(1.0)}, dt::SingleDevice::traits, dt::FP32::traits), state_(run_) {
    torch::manual_seed(1);
    run_.module = std::make_shared<Model>(count, elements);
    dt::collect_slots(run_);
    dt::hold_whole_parameters(run_);
    dt::Parameters parameters;
    for (const dt::Slot& slot : run_.gradients.slots) parameters.push_back({slot.name, slot.shape, slot.held});
    run_.optimizers = dt::OptimizerSet(dt::AdamW(parameters, {.lr = 1e-3, .weight_decay = 1e-2}));
    dt::attach_dense_gradients(run_);
    dt::bind_gradients(run_);
    facts_.squared_norms.assign(1, 0.0);
  }

  /// As autograd leaves them.
  void backward() {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& buffer : run_.gradients.buffers) buffer.fill_(0.5);
    for (dt::Slot& slot : run_.gradients.slots)
      if (!slot.main.defined()) slot.model.mutable_grad() = torch::full_like(slot.model, 0.5);
  }

  void step() {
    const torch::NoGradGuard no_grad;
    run_.gradients.count_missing();
    facts_.squared_norms[0] = run_.gradients.squared_norm(0);
    run_.optimizers[0].step(dt::clip_and_cast(run_, facts_, 1.0, state_));
    run_.gradients.zero();
  }

  double norm() const { return state_.gradient_norm; }

 private:
  dt::RunContext run_;
  dt::LoopState state_;
  dt::StepFacts facts_;
};

double microseconds(Tail& tail) {
  tail.backward();
  const auto start = std::chrono::steady_clock::now();
  tail.step();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

double quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[std::size_t(part * double(values.size() - 1))];
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 201;
  torch::set_num_threads(1);
  Tail many(10'000, 64), one(1, 640'000);
  std::vector<double> ratios, small, large;
  for (int i = 0; i < repeats + 5; ++i) {
    if (i % 2) small.push_back(microseconds(many));
    large.push_back(microseconds(one));
    if (i % 2 == 0) small.push_back(microseconds(many));
    if (i >= 5) ratios.push_back(small.back() / large.back());
  }
  std::printf("after backward, 10,000 tensors of 64 / one of 640,000: %.2fx (%.2f-%.2f), reach 5x; %.0f and %.0f us\n",
              quantile(ratios, 0.5), quantile(ratios, 0.25), quantile(ratios, 0.75), quantile(small, 0.5),
              quantile(large, 0.5));
  std::printf("both saw the same norm: %.6f and %.6f\n", many.norm(), one.norm());
}
