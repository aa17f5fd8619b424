// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/group_sizes.hpp>
#include <dovetail/core/policy_base.hpp>
#include <dovetail/core/traits.hpp>
#include <dovetail/strategy/reduce.hpp>
#include <dovetail/strategy/reshard.hpp>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dovetail {

/// Fully sharded data parallel: parameters, gradients and optimizer state are cut over the ranks. Each `Unit` gathers
/// its parameters before it computes and frees them afterwards. The optimizer may hold only this rank's shards, and
/// those exist only once the model is wrapped: so it delays the optimizers' set-up.
struct FSDP final : StrategyBase {
  static constexpr std::string_view name = "fsdp";
  static constexpr StrategyTraits traits{
      .delays_optimizer_setup = true, .wraps_model = true, .shards = Shards::parameters, .cuts_tensors = true};

  struct Options {
    ReshardAfterForward reshard_after_forward = true;  ///< free a unit's parameters after its forward and gather them
                                                       ///< again in backward; or to_ranks(k)
    int prefetch = 1;                                  ///< how many units are gathered ahead of the one that computes
    std::int64_t keep_below = 1 << 16;  ///< units of fewer elements stay gathered for the whole step and share their
                                        ///< collectives, as long as they have at most 16 times that together
    Reduce reduce = every_micro_batch;  ///< at_boundary: whole gradients stay between micro-batches, and parameters too
                                        ///< where they are not freed after their forward
    std::optional<Format> reduce_format{};  ///< gradients are rounded to it once, sent in it and summed in fp32;
                                            ///< nothing: they are sent as they are summed
    int shard_group = 0;   ///< ranks that share one replica of the model: sharded inside, replicated outside; must
                           ///< divide the ranks; 0: all of them. Sums over replicas are made once a step, in fp32
    int max_gathered = 0;  ///< units are gathered ahead only while fewer than that are gathered; 0: no limit
    bool deferred_building = false;  ///< cut each unit as soon as it is constructed, so that a model larger than one
                                     ///< rank's memory can be built: the same bits, but configure_model may read and
                                     ///< write a unit's parameters only in its constructor or in full_parameters

    /// Of so many ranks.
    constexpr GroupSizes group_sizes(int ranks) const {
      const int shard = shard_group > 0 ? shard_group : ranks;
      const int slices = reshard_after_forward.slices().value_or(shard);
      return {ranks, shard, slices < shard ? slices : 1};
    }

    template <class Visit>
    constexpr void each(Visit&& visit) const {
      visit("reshard_after_forward", reshard_after_forward.text());
      visit("prefetch", prefetch);
      visit("keep_below", keep_below);
      visit("reduce", name_of(reduce));
      visit("reduce_format", name_of(reduce_format));
      visit("shard_group", shard_group);
      visit("max_gathered", max_gathered);
      visit("deferred_building", deferred_building);
    }
  };
  Options options{};

  FSDP() = default;
  constexpr explicit FSDP(Options chosen) : options(chosen) {}
};

}  // namespace dovetail
