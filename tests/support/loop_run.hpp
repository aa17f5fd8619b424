// SPDX-License-Identifier: Apache-2.0
// A fit whose parts are chosen at run time, so that the tests of the loop share one Task type and few Trainers. The
// pairs are compiled in unit/loop_run.cpp.
#pragma once

#include <dovetail/callback/early_stopping.hpp>
#include <dovetail/optim/adam.hpp>
#include <dovetail/optim/adamw.hpp>
#include <dovetail/optim/sgd.hpp>
#include <dovetail/precision/scaler_options.hpp>
#include <dovetail/trainer.hpp>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace loop {

using dovetail::Batch;
using dovetail::Parameters;
using dovetail::StepContext;
using torch::Tensor;

/// Three inputs, one output, and perhaps two numbers that a loss may use or leave out.
struct Net : torch::nn::Module {
  explicit Net(bool with_spare = false)
      : in(register_module("in", torch::nn::Linear(3, 4))), out(register_module("out", torch::nn::Linear(4, 1))) {
    if (with_spare) spare = register_parameter("spare", torch::ones({2}));
  }

  Tensor forward(const Tensor& x) { return out(torch::tanh(in(x))); }

  torch::nn::Linear in, out;
  Tensor spare;
};

using AnyOptimizer = std::unique_ptr<torch::optim::Optimizer>;

struct AnyFactor {
  std::function<double(int64_t)> of;
  double factor(int64_t taken) const { return of ? of(taken) : 1.0; }
};

inline Tensor mse(Net& net, const Batch& batch, StepContext&) {
  return torch::mse_loss(net.forward(batch.data), batch.target);
}

/// The Task: what it does is a list of functions, and it notes what it is asked for.
struct Script {
  std::function<std::shared_ptr<Net>()> model = [] { return std::make_shared<Net>(); };
  std::function<AnyOptimizer(const Parameters&)> optimizer = [](const Parameters& p) -> AnyOptimizer {
    return std::make_unique<dovetail::SGD>(p, dovetail::SGDOptions{.lr = 0.1});
  };
  AnyFactor factor{};
  std::function<Tensor(Net&, const Batch&, StepContext&)> loss = mse;
  std::function<void(Net&, const Batch&, StepContext&)> validate = [](Net& net, const Batch& batch, StepContext& step) {
    step.log("loss", mse(net, batch, step));
  };

  int models = 0, configured = 0, steps = 0, validations = 0;  // how often each function was called

  std::shared_ptr<Net> configure_model() {
    ++models;
    return model();
  }
  auto configure_optimizers(const Parameters& parameters) {
    ++configured;
    return dovetail::scheduled(optimizer(parameters), factor);
  }
  Tensor training_step(Net& net, const Batch& batch, StepContext& step) {
    ++steps;
    return loss(net, batch, step);
  }
  void validation_step(Net& net, const Batch& batch, StepContext& step) {
    ++validations;
    validate(net, batch, step);
  }
};

/// Rows of three numbers and their target; notes which rows are asked for.
struct Rows {
  Tensor x, y;
  std::shared_ptr<std::vector<int64_t>> asked = std::make_shared<std::vector<int64_t>>();

  Rows(int64_t n, uint64_t seed) {
    auto generator = at::detail::createCPUGenerator(seed);  // not torch's own: the data is no part of the run
    x = torch::randn({n, 3}, generator, torch::kFloat32);
    y = torch::randn({n, 1}, generator, torch::kFloat32);
  }
  int64_t size() const { return x.size(0); }
  void fetch(std::span<const int64_t> indices, Batch& out) const {
    asked->insert(asked->end(), indices.begin(), indices.end());
    const Tensor rows = torch::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
    out.data = x.index_select(0, rows);
    out.target = y.index_select(0, rows);
  }
};

struct Data {
  Rows train{24, 1}, validation{10, 2};
  const Rows& train_data() const { return train; }
  const Rows& validation_data() const { return validation; }
};

/// A callback with every hook, and a logger.
struct Watch {
  std::function<void(const std::string& hook, dovetail::LoopState&)> see = [](const std::string&,
                                                                              dovetail::LoopState&) {};
  std::function<void(const dovetail::MetricsRow&)> row = [](const dovetail::MetricsRow&) {};

  void on_fit_start(dovetail::LoopState& s) { see("fit_start", s); }
  void on_train_epoch_start(dovetail::LoopState& s) { see("epoch_start", s); }
  void on_train_step_end(dovetail::LoopState& s) { see("step_end", s); }
  void on_train_epoch_end(dovetail::LoopState& s) { see("epoch_end", s); }
  void on_validation_start(dovetail::LoopState& s) { see("validation_start", s); }
  void on_validation_end(dovetail::LoopState& s) { see("validation_end", s); }
  void on_fit_end(dovetail::LoopState& s) { see("fit_end", s); }
  void on_exception(dovetail::LoopState& s, const std::exception_ptr&) { see("exception", s); }
  void log_metrics(const dovetail::MetricsRow& r) { row(r); }
};

/// fp32 with the loss scaler of fp16: what a scaler does, without what fp16 rounds.
struct Scaled final : dovetail::PrecisionBase {
  static constexpr std::string_view name = "scaled";
  static constexpr dovetail::PrecisionTraits traits{.scaler = dovetail::Scaler::collective,
                                                    .compute = dovetail::Format::fp16};
  dovetail::ScalerOptions options{};
  Scaled() = default;
  explicit Scaled(dovetail::ScalerOptions chosen) : options(chosen) {}
  void environment(dovetail::PrecisionContext& run) { run.scaler.emplace(options); }
};

enum class Pair { fp32, ddp, scaled, fp16_mixed, fp16_true, apex_o3 };  // on one device, but for ddp

/// A run that says nothing and does not look at validation data before the first step, unless told otherwise.
struct Setting {
  dovetail::TrainerOptions options{.batch_size = 4, .sanity_validation_batches = 0, .progress = false};
  Pair pair = Pair::fp32;
  dovetail::ScalerOptions scaler{};
};

using Result = dovetail::FitResult<Net>;

Result fit(const Setting& setting, Script& script, Data& data, Watch& watch);
Result fit(const Setting& setting, Script& script, Data& data, dovetail::EarlyStopping& stopping);  // in fp32

struct Twice {
  Result first;
  Tensor weights_of_first;  // before the second fit
  Result second;
};
Twice fit_twice(const Setting& setting, Script& script, Data& data, Watch& watch);  // by one Trainer, under Scaled

inline Result fit(const Setting& setting, Script& script) {
  Data data;
  Watch watch;
  return fit(setting, script, data, watch);
}

/// All parameters of a module in one row.
inline Tensor flat(const torch::nn::Module& module) {
  std::vector<Tensor> all;
  for (const Tensor& parameter : module.parameters())
    all.push_back(parameter.detach().clone().flatten().to(torch::kFloat64));
  return torch::cat(all);
}
inline Tensor weights(const Result& result) {
  return flat(*result.model);
}

inline double apart(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>();
}

/// The Error that `body` throws; a code of `done` and no text if it throws none.
template <class Body>
dovetail::Error error_of(Body&& body) {
  try {
    body();
  } catch (const dovetail::Error& error) {
    return error;
  }
  return {dovetail::ExitCode::done, ""};
}
inline dovetail::Error error_of(const Setting& setting, Script script) {
  return error_of([&] { fit(setting, script); });
}

/// The optimizer that `made` makes, as a Script wants it.
template <class Optimizer, class Options>
std::function<AnyOptimizer(const Parameters&)> maker(Options options) {
  return [options](const Parameters& p) -> AnyOptimizer { return std::make_unique<Optimizer>(p, options); };
}

}  // namespace loop
