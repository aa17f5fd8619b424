// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/context.hpp>
#include <dovetail/strategy/fsdp_run.hpp>

#include <torch/nn.h>

#include <cmath>

/// FSDP around a loop written by hand: set-up, micro-batches and plain SGD on this rank's pieces. Unless the options
/// say what to keep, every unit is gathered and freed, however small.
class FsdpSession {
 public:
  FsdpSession(std::shared_ptr<torch::nn::Module> model, dovetail::Communicator comm = {},
              dovetail::FSDP::Options options = {}, dovetail::PrecisionTraits precision = {})
      : run(dovetail::TrainerOptions{}, dovetail::FSDP::traits, precision), fsdp(dovetail::FSDP(every_unit(options))) {
    run.comm = std::move(comm);
    run.module = std::move(model);
    fsdp.environment(run);
    dovetail::collect_slots(run);
    fsdp.wrap_model(run);
    fsdp.attach_gradients(run);
  }

  /// One micro-batch: `loss()` runs the forward and returns the loss.
  template <class Loss>
  double micro_batch(int64_t index, Loss&& loss, int64_t window = 1) {
    run.micro_batch = index;
    run.window = std::max(window, index + 1);
    fsdp.before_forward(run);
    const torch::Tensor value = loss();
    fsdp.before_backward(run);
    value.backward();
    fsdp.after_backward(run);
    return value.template item<double>();
  }

  /// Plain SGD; gradients are sums over ranks.
  void step(double rate) {
    torch::NoGradGuard no_grad;
    fsdp.reduce(run);
    for (auto& slot : run.gradients.slots) slot.held.sub_(slot.main.to(slot.held.scalar_type()), rate);
    fsdp.after_step(run);
    run.gradients.zero();
  }

  template <class Loss>
  double train(double rate, Loss&& loss) {
    const double value = micro_batch(0, loss);
    step(rate);
    return value;
  }

  dovetail::Slot& slot(const std::string& name) {
    for (auto& one : run.gradients.slots)
      if (one.name == name) return one;
    throw std::runtime_error("no slot " + name);
  }

  /// Bytes of parameters and of gradients that exist in whole right now.
  std::size_t full_bytes() const {
    return bytes([](const dovetail::FlatSegment& s) { return s.full_bytes(); });
  }
  std::size_t slice_bytes() const {
    return bytes([](const dovetail::FlatSegment& s) { return s.slice_bytes(); });
  }
  std::size_t gradient_bytes() const {
    return bytes([](const dovetail::FlatSegment& s) { return s.gradient_bytes(); });
  }

  dovetail::RunContext run;
  dovetail::FSDPRun fsdp;

 private:
  static dovetail::FSDP::Options every_unit(dovetail::FSDP::Options options) {
    if (options.keep_below == dovetail::FSDP::Options{}.keep_below) options.keep_below = 0;
    return options;
  }

  template <class Of>
  std::size_t bytes(Of of) const {
    std::size_t total = 0;
    for (const auto& unit : fsdp.units().units())
      for (const auto& segment : unit.segments()) total += of(segment);
    for (const auto& segment : fsdp.units().root().segments()) total += of(segment);
    return total;
  }
};

/// Plain SGD on a whole model.
template <class Loss>
double train_plainly(torch::nn::Module& model, double rate, Loss&& loss) {
  model.zero_grad();
  const torch::Tensor value = loss();
  value.backward();
  torch::NoGradGuard no_grad;
  for (auto& parameter : model.parameters())
    if (parameter.grad().defined()) parameter.sub_(parameter.grad(), rate);
  return value.template item<double>();
}

inline double largest_difference(const torch::nn::Module& a, const torch::nn::Module& b) {
  torch::NoGradGuard no_grad;
  double worst = 0;
  const auto left = a.named_parameters(), right = b.named_parameters();
  if (left.keys() != right.keys()) return INFINITY;
  for (const auto& item : left) worst = std::max(worst, (item.value() - right[item.key()]).abs().max().item<double>());
  return worst;
}
