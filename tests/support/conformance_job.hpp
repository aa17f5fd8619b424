// SPDX-License-Identifier: Apache-2.0
// One Task for many pairs of policies: its functions are chosen at run time, so that each pair is compiled once.
#pragma once

#include <dovetail/optim/adagrad.hpp>
#include <dovetail/optim/adam.hpp>
#include <dovetail/optim/adamw.hpp>
#include <dovetail/optim/sgd.hpp>
#include <dovetail/policies.hpp>
#include <dovetail/shard/unit.hpp>
#include <dovetail/trainer.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

/// All optimizers of ours are element-wise.
template <>
inline constexpr dovetail::OptimizerTraits dovetail::optimizer_traits<dovetail::FusedOptimizer>{.elementwise = true};

namespace conformance {

namespace dt = dovetail;
using torch::Tensor;

/// Two units, a parameter outside of them, and room for what a case needs.
struct Net : torch::nn::Module {
  explicit Net(int64_t inputs = 5, int64_t width = 7, int64_t outputs = 3)
      : in(register_module("in", dt::Unit<torch::nn::Linear>(inputs, width))),
        out(register_module("out", dt::Unit<torch::nn::Linear>(width, outputs))),
        scale(register_parameter("scale", torch::ones({}))) {}

  Tensor forward(const Tensor& x) { return out(torch::tanh(in(x))) * scale; }

  dt::Unit<torch::nn::Linear> in, out;
  Tensor scale;
};

/// In fp32 at least, as a loss should be.
inline Tensor mse(const Tensor& out, const Tensor& target) {
  const Tensor wide = out.scalar_type() == torch::kFloat64 ? out : out.to(torch::kFloat32);
  return torch::mse_loss(wide, target.to(wide.scalar_type()));
}

using Fused = std::unique_ptr<dt::FusedOptimizer>;

template <class Optimizer, class Options>
std::function<Fused(const dt::Parameters&)> maker(Options options) {
  return [options](const dt::Parameters& p) -> Fused { return std::make_unique<Optimizer>(p, options); };
}

template <class Model = Net>
struct Job {
  std::function<std::shared_ptr<Model>()> model = [] { return std::make_shared<Model>(); };
  std::function<Fused(const dt::Parameters&)> optimizer = maker<dt::SGD>(dt::SGDOptions{.lr = 0.1});
  std::function<Tensor(Model&, const dt::Batch&, dt::StepContext&)> loss = mean_squared_error();

  std::shared_ptr<Model> configure_model() { return model(); }
  Fused configure_optimizers(const dt::Parameters& p) { return optimizer(p); }
  Tensor training_step(Model& net, const dt::Batch& batch, dt::StepContext& step) { return loss(net, batch, step); }
  void validation_step(Model& net, const dt::Batch& batch, dt::StepContext& step) {
    step.log("loss", loss(net, batch, step));
  }

 private:
  /// Of a model that has a forward.
  static std::function<Tensor(Model&, const dt::Batch&, dt::StepContext&)> mean_squared_error() {
    if constexpr (requires(Model & net, const Tensor& x) { net.forward(x); })
      return [](Model& net, const dt::Batch& batch, dt::StepContext&) {
        return mse(net.forward(batch.data), batch.target);
      };
    else
      return {};
  }
};

/// A callback.
struct Watch {
  std::function<void(dt::LoopState&)> start = [](dt::LoopState&) {}, step = [](dt::LoopState&) {};
  void on_fit_start(dt::LoopState& state) { start(state); }
  void on_train_step_end(dt::LoopState& state) { step(state); }
};

struct Outcome {
  int64_t steps = 0;
  double loss = 0;
  dt::CommunicationCounts communication;
  Tensor weights;              ///< all parameters in one row, as fp64
  std::vector<double> losses;  ///< of each step
};

inline Tensor flat(const torch::nn::Module& module) {
  std::vector<Tensor> all;
  for (const Tensor& parameter : module.parameters())
    all.push_back(parameter.detach().clone().flatten().to(torch::kFloat64));
  return torch::cat(all);
}

inline double apart(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() ? (a - b).abs().max().item<double>() : HUGE_VAL;
}

/// Rows of five numbers and their targets of three, the same for the same seed.
inline dt::TensorDataset rows(int64_t count = 24, uint64_t seed = 1, int64_t inputs = 5, int64_t outputs = 3) {
  auto generator = at::detail::createCPUGenerator(seed);
  const Tensor x = torch::randn({count, inputs}, generator, torch::kFloat32);
  return {x, torch::randn({count, outputs}, generator, torch::kFloat32)};
}

/// In order, and says nothing.
inline dt::TrainerOptions quiet(int64_t epochs = 2, int64_t batch_size = 4) {
  return {.max_epochs = epochs,
          .batch_size = batch_size,
          .shuffle = false,
          .sanity_validation_batches = 0,
          .validate_every = 0,
          .progress = false};
}

template <class S, class P, class Task, class Data = dt::TensorDataset>
Outcome fit(const dt::TrainerOptions& options, Task& task, const Data& data, Watch watch = {}, S strategy = {},
            P precision = {}) {
  Outcome outcome;
  const auto note = [then = watch.step, &outcome](dt::LoopState& state) {
    outcome.losses.push_back(state.loss);
    then(state);
  };
  watch.step = note;
  const auto result = dt::Trainer<S, P>(options, strategy, precision).fit(task, data, watch);
  outcome.steps = result.steps;
  outcome.loss = result.loss;
  outcome.communication = result.communication;
  outcome.weights = flat(*result.model);
  return outcome;
}

}  // namespace conformance
