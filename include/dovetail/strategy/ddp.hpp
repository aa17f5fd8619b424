// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/policy_base.hpp>
#include <dovetail/core/traits.hpp>
#include <dovetail/strategy/reduce.hpp>
#include <optional>
#include <string_view>

namespace dovetail {

/// Data parallel: every rank holds the whole model and computes on its part of the batch; gradients are summed over
/// ranks in buckets while backward still runs, so every rank takes the same step.
struct DDP final : StrategyBase {
  static constexpr std::string_view name = "ddp";
  static constexpr StrategyTraits traits{.wraps_model = true, .accepts_closure = true};

  struct Options {
    int bucket_mb = 25;       ///< size of a bucket of gradients, MiB
    int first_bucket_mb = 4;  ///< the same of the bucket that is ready first: small, so that reduction starts early,
                              ///< but worth a call of Gloo's
    std::optional<Format> reduce_format{};  ///< as FSDP's; any of them, fp32 too, goes to owners of parts and comes
                                            ///< back in fp32: every rank has what Sharded and FSDP have in parts

    template <class Visit>
    constexpr void each(Visit&& visit) const {
      visit("bucket_mb", bucket_mb);
      visit("first_bucket_mb", first_bucket_mb);
      visit("reduce_format", name_of(reduce_format));
    }
  };
  Options options{};

  DDP() = default;
  constexpr explicit DDP(Options chosen) : options(chosen) {}
};

}  // namespace dovetail
