// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <dovetail/core/memory_plan.hpp>
#include <dovetail/core/setup_graph.hpp>
#include <string>
#include <string_view>

namespace dovetail {

/// How many samples make a step.
struct BatchPlan {
  std::int64_t batch_size = 32;  ///< samples per rank and micro-batch
  std::int64_t accumulate = 1;   ///< micro-batches per optimizer step
  std::int64_t ranks = 1;
  std::int64_t shard_group = 0;  ///< neighbouring ranks that share one replica of the model; 0: all ranks

  /// Samples per optimizer step, over all ranks.
  constexpr std::int64_t global() const { return batch_size * accumulate * ranks; }
};

namespace detail {

inline std::string_view words(Shards shards) {
  switch (shards) {
    case Shards::nothing:
      return "every rank holds everything";
    case Shards::optimizer_state:
      return "optimizer state cut over ranks";
    case Shards::gradients:
      return "optimizer state and gradients cut over ranks";
    case Shards::parameters:
      return "parameters, gradients and optimizer state cut over ranks";
  }
  return {};
}

inline std::string_view words(Scaler scaler) {
  switch (scaler) {
    case Scaler::none:
      return "no loss scaler";
    case Scaler::local:
      return "loss scaler on each rank";
    case Scaler::collective:
      return "loss scaler over all ranks";
  }
  return {};
}

/// With two decimals, or fewer: "16", "10.67".
inline std::string decimal(double value) {
  const auto hundredths = static_cast<std::int64_t>(value * 100 + 0.5);
  std::string text = std::to_string(hundredths / 100);
  if (hundredths % 100 != 0) {
    text += '.';
    text += static_cast<char>('0' + hundredths % 100 / 10);
    if (hundredths % 10 != 0) text += static_cast<char>('0' + hundredths % 10);
  }
  return text;
}

inline std::string describe(std::string_view strategy_name, const StrategyTraits& strategy,
                            std::string_view precision_name, const PrecisionTraits& precision, const SetupOrder& order,
                            const BatchPlan& batch) {
  std::string text;
  const auto add = [&](auto... parts) { (text.append(parts), ...); };
  const auto number = [](std::int64_t n) { return std::to_string(n); };

  const std::int64_t group = batch.shard_group > 0 ? batch.shard_group : batch.ranks;
  add("strategy   ", strategy_name, " (", words(strategy.shards));
  if (group < batch.ranks) add(", one replica on each ", number(group));
  add(")\n");
  add("precision  ", precision_name, " (computes in ", name_of(precision.compute), ", keeps weights in ",
      name_of(precision.storage), precision.wraps_optimizers ? ", wraps optimizers, " : ", ", words(precision.scaler),
      ")\n");
  add("set-up     ");
  for (const Stage* stage = order.begin(); stage != order.end(); ++stage)
    add(stage == order.begin() ? "" : " -> ", name_of(*stage));
  add("\nbatch      ", number(batch.batch_size), " per rank x ", number(batch.accumulate), " accumulated x ",
      number(batch.ranks), batch.ranks == 1 ? " rank = " : " ranks = ", number(batch.global()), " samples per step\n");
  const ModelState state = model_state(strategy, precision, static_cast<int>(group));
  add("memory     ", decimal(state.total()), " bytes per parameter on each rank with Adam: weights ",
      decimal(state.weights), ", gradients ", decimal(state.gradients), ", optimizer ", decimal(state.optimizer), "\n");
  return text;
}

}  // namespace detail

/// The plan of a compatible pair in words, from the same constants that run it: policies, order of set-up, batch
/// arithmetic and the memory of the model state. Five lines, each ending in a newline.
template <class Strategy, class Precision>
std::string describe(const BatchPlan& batch = {}) {
  return detail::describe(Strategy::name, Strategy::traits, Precision::name, Precision::traits,
                          setup_order<Strategy, Precision>, batch);
}

}  // namespace dovetail
