// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/policy_base.hpp>
#include <dovetail/core/traits.hpp>
#include <dovetail/strategy/reduce.hpp>
#include <optional>
#include <string_view>

namespace dovetail {

/// Options of Sharded<level>.
template <int level>
struct ShardedOptions {
  int bucket_mb = 2;  ///< size of the buckets in which gradients are reduced, MiB, of which up to three have memory at
                      ///< once; those of optimizers that want whole tensors are reduced in one
  std::optional<Format> reduce_format{};  ///< as FSDP's

  template <class Visit>
  constexpr void each(Visit&& visit) const {
    visit("bucket_mb", bucket_mb);
    visit("reduce_format", name_of(reduce_format));
  }
};
template <>
struct ShardedOptions<2> {
  int bucket_mb = 2;                  ///< as Sharded<1>'s
  Reduce reduce = every_micro_batch;  ///< at_boundary: whole gradients stay between micro-batches
  std::optional<Format> reduce_format{};

  template <class Visit>
  constexpr void each(Visit&& visit) const {
    visit("bucket_mb", bucket_mb);
    visit("reduce", name_of(reduce));
    visit("reduce_format", name_of(reduce_format));
  }
};

/// Data parallel with the optimizer's work cut over the ranks (ZeRO stages 1 and 2; fairscale's OSS and ShardedDDP).
/// `Sharded<1>` cuts the optimizer's state, `Sharded<2>` the gradients as well; every rank still holds the whole model.
/// Optimizers are made over the whole parameters and then rebuilt over this rank's part. Parts end inside tensors where
/// all optimizers are element-wise, else at their borders, so that any optimizer is right.
template <int level>
struct Sharded final : StrategyBase {
  static constexpr bool arguments_fit = level == 1 || level == 2;

  static constexpr std::string_view name = level == 1 ? "sharded-1" : "sharded-2";
  static constexpr StrategyTraits traits{.rebuilds_optimizers = true,
                                         .wraps_model = true,
                                         .shards = level == 1 ? Shards::optimizer_state : Shards::gradients};

  using Options = ShardedOptions<level>;
  Options options{};

  Sharded() = default;
  constexpr explicit Sharded(Options chosen) : options(chosen) {}
};

}  // namespace dovetail
