// SPDX-License-Identifier: Apache-2.0
// Every pair of the registry that compiles, as rows of one table, so that all cases below are ordinary code.
#pragma once

#include <dovetail/data/sampler.hpp>
#include <dovetail/optim/adam.hpp>
#include <dovetail/optim/sgd.hpp>
#include <dovetail/precision/precision_run.hpp>
#include <dovetail/registry.hpp>
#include <dovetail/shard/unit.hpp>
#include <dovetail/strategy/ddp_run.hpp>
#include <dovetail/strategy/fsdp_run.hpp>
#include <dovetail/strategy/sharded_run.hpp>
#include <dovetail/strategy/single_device_run.hpp>
#include <dovetail/trainer.hpp>

#include "parity/oracle.hpp"

/// The task below chooses between SGD and Adam at run time; both are element-wise.
template <>
inline constexpr dovetail::OptimizerTraits dovetail::optimizer_traits<dovetail::FusedOptimizer>{.elementwise = true};

namespace parity {

namespace dt = dovetail;

/// One task for all settings, so that each pair is instantiated once.
struct Task {
  Setting setting;

  std::shared_ptr<Net> configure_model() const { return make_net<dt::Unit>(setting.model); }

  std::unique_ptr<dt::FusedOptimizer> configure_optimizers(const dt::Parameters& p) const {
    if (setting.optimizer == OptimizerKind::adam)
      return std::make_unique<dt::Adam>(p, dt::AdamOptions{.lr = adam_rate, .eps = adam_eps});
    const double keep = setting.optimizer == OptimizerKind::momentum ? momentum : 0;
    return std::make_unique<dt::SGD>(
        p, dt::SGDOptions{.lr = learning_rate, .momentum = keep, .weight_decay = weight_decay});
  }

  Tensor training_step(Net& net, const dt::Batch& batch, dt::StepContext&) const {
    return net.loss(batch.data, batch.target);
  }
};

/// fp32 with a loss scaler, which no rule would let a precision declare: what scaling by a power of two must not
/// change.
struct ScaledFP32 final : dt::PrecisionBase {
  static constexpr std::string_view name = "fp32-scaled";
  static constexpr dt::PrecisionTraits traits{};
  dt::ScalerOptions options{};
  void environment(dt::PrecisionContext& run) { run.scaler.emplace(options); }
};

/// The order of an epoch is the same for every number of ranks, so that of one rank is it.
inline Tensor shuffled_rows(int64_t samples, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> rows;
  dt::Sampler(samples, 0, 1, {samples, seed, true}).indices(epoch, 0, rows);
  return torch::tensor(rows);
}

inline dt::TrainerOptions options_of(const Setting& setting) {
  return {.max_epochs = Setting::epochs,
          .batch_size = Setting::batch_size,
          .accumulate = setting.accumulate,
          .gradient_clip = setting.clip,
          .seed = Setting::seed,
          .shuffle = setting.shuffle,
          .log_every = 0,
          .deterministic = setting.deterministic,
          .progress = false};
}

inline Outcome outcome_of(const dt::FitResult<Net>& result) {
  Outcome outcome;
  outcome.steps = result.steps;
  outcome.loss = result.loss;
  keep_tensors(*result.model, outcome);
  outcome.masks = result.model->masks;
  return outcome;
}

/// Fits `times` times with one Trainer.
template <class S, class P>
std::vector<Outcome> fit(const Setting& setting, int times) {
  P precision;
  if constexpr (requires { precision.options.growth; })
    if (setting.scale > 0) precision.options = {.init = setting.scale, .growth = 1};
  S strategy;
  if constexpr (requires { strategy.options.keep_below; }) strategy.options.keep_below = 0;  // the models are small
  dt::Trainer<S, P> trainer(options_of(setting), strategy, precision);
  const auto [x, y] = make_data(setting.model, setting.samples(dt::current_ranks().world_size));
  std::vector<Outcome> outcomes;
  for (int i = 0; i < times; ++i) outcomes.push_back(outcome_of(trainer.fit(Task{setting}, dt::TensorDataset(x, y))));
  return outcomes;
}

struct PairRow {
  std::string strategy, precision;
  dt::StrategyTraits strategy_traits;
  dt::PrecisionTraits precision_traits;
  std::vector<Outcome> (*fit)(const Setting&, int times);

  [[nodiscard]] std::string name() const { return strategy + " x " + precision; }
};

template <class S, class P>
void add_row(std::vector<PairRow>& rows) {
  if constexpr (dt::compatible<S, P>)
    rows.push_back({std::string(S::name), std::string(P::name), S::traits, P::traits, &fit<S, P>});
}

template <class... Pairs>
std::vector<PairRow> rows_of(dt::PairList<Pairs...>) {
  std::vector<PairRow> rows;
  (add_row<typename Pairs::Strategy, typename Pairs::Precision>(rows), ...);
  return rows;
}

inline std::vector<PairRow> built_in_rows() {
  return rows_of(dt::BuiltInPairs{});
}
inline std::vector<PairRow> scaled_rows() {
  return rows_of(dt::AllPairs<dt::BuiltInStrategies, dt::PolicyList<ScaledFP32>>{});
}

}  // namespace parity
