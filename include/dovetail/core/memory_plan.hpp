// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/traits.hpp>

namespace dovetail {

/// What one parameter takes on one rank between steps and in the step itself, in bytes, as a mean over all parameters.
/// Activations, buffers of the model, and what a strategy receives for the time of a unit or bucket are not in it.
struct ModelState {
  double weights = 0;    ///< in the storage format
  double gradients = 0;  ///< main gradients, in fp32 at least, and what is rounded from them for the optimizer
  double optimizer = 0;  ///< fp32 masters and the optimizer's own state

  [[nodiscard]] constexpr double total() const { return weights + gradients + optimizer; }
};

constexpr double bytes_of(Format format) {
  return format == Format::fp64 ? 8 : format == Format::fp32 ? 4 : 2;
}

/// How many of a run's ranks share one replica of the model: all of them, unless the strategy's options have replicas
/// on smaller groups.
template <class Strategy>
constexpr int shard_group_size([[maybe_unused]] const Strategy& strategy, int ranks) {
  if constexpr (requires { strategy.options.group_sizes(ranks); }) return strategy.options.group_sizes(ranks).shard;
  return ranks;
}

/// The model state of a pair with an optimizer that keeps `states` tensors per parameter (Adam: 2). With states = 2 the
/// terms of ZeRO (Rajbhandari et al., arXiv 1910.02054), but that main gradients are kept in fp32 for every precision.
/// @param ranks  those that share one replica of the model
constexpr ModelState model_state(const StrategyTraits& strategy, const PrecisionTraits& precision, int ranks,
                                 double states = 2) {
  const double stored = bytes_of(precision.storage), wide = stored < 4 ? 4 : stored;
  const bool low = stored < wide;
  const double stepped = precision.keeps_masters ? wide : stored;
  const auto part = [&](Shards from) { return strategy.shards >= from ? 1.0 / ranks : 1.0; };
  return {.weights = stored * part(Shards::parameters),
          .gradients = wide * part(Shards::gradients) +
                       (low && !precision.keeps_masters ? stored : 0) * part(Shards::optimizer_state),
          .optimizer = ((precision.keeps_masters ? wide : 0) + states * stepped) * part(Shards::optimizer_state)};
}

}  // namespace dovetail
