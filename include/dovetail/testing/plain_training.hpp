// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/optim/clip.hpp>
#include <dovetail/optim/sgd.hpp>
#include <dovetail/trainer.hpp>

#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

/// A small training run whose result is known: the same by a Trainer and by the loop that everybody would write.

namespace dovetail::testing {

/// Which run. Ten optimizer steps in any case.
struct SmallRun {
  static constexpr int64_t batch_size = 4, epochs = 2;  ///< per rank and micro-batch
  int64_t accumulate = 1;
  bool short_tail = false;  ///< the last rank has one sample less in the last batch of an epoch
  std::optional<ClipOptions> clip{};

  int64_t samples(int ranks) const { return 5 * accumulate * ranks * batch_size - (short_tail ? 1 : 0); }
};

/// Linear, tanh, linear, with parameters of 35, 5, 15 and 3 elements.
class SmallNet : public torch::nn::Module {
 public:
  SmallNet() {
    first_ = register_module("first", torch::nn::Linear(7, 5));
    second_ = register_module("second", torch::nn::Linear(5, 3));
  }

  /// Mean squared error, in fp32 at least.
  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& y) {
    torch::Tensor out = second_(torch::tanh(first_(x)));
    if (out.scalar_type() != torch::kFloat64) out = out.to(torch::kFloat32);
    return torch::mse_loss(out, y.to(out.scalar_type()));
  }

 private:
  torch::nn::Linear first_{nullptr}, second_{nullptr};
};

inline constexpr double small_rate = 0.1, small_momentum = 0.9;

/// The run as a Task. Counts how often it is asked for optimizers.
struct SmallTask {
  int* optimizers_made;

  std::shared_ptr<SmallNet> configure_model() const { return std::make_shared<SmallNet>(); }
  SGD configure_optimizers(const Parameters& parameters) const {
    ++*optimizers_made;
    return SGD(parameters, {.lr = small_rate, .momentum = small_momentum});
  }
  torch::Tensor training_step(SmallNet& net, const Batch& batch, StepContext&) const {
    return net.loss(batch.data, batch.target);
  }
};

/// Its data: the first `samples` of one sequence.
inline std::pair<torch::Tensor, torch::Tensor> small_data(int64_t samples) {
  const torch::Tensor steps = torch::arange(samples * 10, torch::kFloat64).reshape({samples, 10});
  const torch::Tensor all = torch::sin(steps * steps * 0.37 + steps).to(torch::kFloat32);
  return {all.slice(1, 0, 7).contiguous(), all.slice(1, 7).contiguous()};
}

inline TrainerOptions options_of(const SmallRun& run) {
  TrainerOptions options;
  options.max_epochs = SmallRun::epochs;
  options.batch_size = SmallRun::batch_size;
  options.accumulate = run.accumulate;
  options.gradient_clip = run.clip;
  options.shuffle = options.progress = false;
  return options;
}

/// What a run leaves: its parameters one after the other, as fp64, and the loss of the last step.
struct SmallOutcome {
  torch::Tensor parameters;
  torch::ScalarType stored = torch::kFloat32;  ///< the dtype in which the model had them
  double loss = 0;
  int64_t steps = 0;
};

inline SmallOutcome outcome_of(const torch::nn::Module& net, double loss, int64_t steps) {
  std::vector<torch::Tensor> flat;
  for (const torch::Tensor& parameter : net.parameters())
    flat.push_back(parameter.detach().flatten().to(torch::kFloat64));
  return {torch::cat(flat), net.parameters().front().scalar_type(), loss, steps};
}

/// The loop that everybody would write, on one device: the batch of a step holds what all ranks and micro-batches have.
inline SmallOutcome train_plainly(const SmallRun& run, int ranks, uint64_t seed) {
  torch::manual_seed(seed);
  SmallNet net;
  const auto [x, y] = small_data(run.samples(ranks));
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(small_rate).momentum(small_momentum));
  const int64_t rows = run.accumulate * ranks * SmallRun::batch_size;
  double last = 0;
  int64_t steps = 0;
  for (int64_t epoch = 0; epoch < SmallRun::epochs; ++epoch)
    for (int64_t first = 0; first < x.size(0); first += rows, ++steps) {
      optimizer.zero_grad();
      const torch::Tensor loss = net.loss(x.slice(0, first, first + rows), y.slice(0, first, first + rows));
      loss.backward();
      if (run.clip && run.clip->kind == ClipOptions::Kind::norm)
        torch::nn::utils::clip_grad_norm_(net.parameters(), run.clip->limit);
      if (run.clip && run.clip->kind == ClipOptions::Kind::value)
        torch::nn::utils::clip_grad_value_(net.parameters(), run.clip->limit);
      optimizer.step();
      last = loss.item<double>();
    }
  return outcome_of(net, last, steps);
}

/// The largest difference of two outcomes; infinite where it is none.
inline double distance(const SmallOutcome& a, const SmallOutcome& b) {
  if (a.parameters.sizes() != b.parameters.sizes()) return HUGE_VAL;
  const double largest = std::max((a.parameters - b.parameters).abs().max().item<double>(), std::abs(a.loss - b.loss));
  return std::isfinite(largest) ? largest : HUGE_VAL;
}

}  // namespace dovetail::testing
