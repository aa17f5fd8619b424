// SPDX-License-Identifier: Apache-2.0

// The traits of the built-in policies, against DESIGN's table, and the defaults of a policy that says nothing.
#include "check.hpp"

#include <dovetail/core/concepts.hpp>
#include <dovetail/registry.hpp>
#include <type_traits>

using namespace dovetail;

namespace {

struct EmptyStrategy : StrategyBase {
  static constexpr std::string_view name = "empty";
  static constexpr StrategyTraits traits{};
};
struct EmptyPrecision : PrecisionBase {
  static constexpr std::string_view name = "empty";
  static constexpr PrecisionTraits traits{};
};

static_assert(Strategy<EmptyStrategy> && Precision<EmptyPrecision> && compatible<EmptyStrategy, EmptyPrecision>);
static_assert(!delays_optimizer_setup<EmptyStrategy> && !wraps_optimizers<EmptyPrecision>);
static_assert(EmptyStrategy::traits.exact && EmptyStrategy::traits.resumable && EmptyPrecision::traits.resumable);
static_assert(EmptyStrategy::traits.clips.norm && EmptyStrategy::traits.clips.value);
static_assert(EmptyStrategy::traits.max_optimizers == any_number && !EmptyStrategy::traits.accepts_closure);

// A trait is a member of an aggregate, so a misspelt one cannot be set.
template <class Traits>
constexpr bool takes_misspelt = requires {
  Traits{.wrap_model = true};
};
static_assert(!takes_misspelt<StrategyTraits> && std::is_aggregate_v<StrategyTraits>);
static_assert(std::is_aggregate_v<PrecisionTraits> && std::is_aggregate_v<OptimizerTraits>);

template <class... P>
constexpr bool final_empty_named(PolicyList<P...>) {
  return ((std::is_final_v<P> && !std::is_polymorphic_v<P> && std::is_nothrow_move_constructible_v<P> &&
           std::is_default_constructible_v<P>)&&...);
}
static_assert(final_empty_named(BuiltInStrategies{}) && final_empty_named(BuiltInPrecisions{}));
template <class... S>
constexpr bool strategies(PolicyList<S...>) {
  return (Strategy<S> && ...) && (!Precision<S> && ...);
}
template <class... P>
constexpr bool precisions(PolicyList<P...>) {
  return (Precision<P> && ...) && (!Strategy<P> && ...);
}
static_assert(strategies(BuiltInStrategies{}) && precisions(BuiltInPrecisions{}));

// Every built-in policy clips by norm and value, takes several optimizers, is exact and resumable.
template <class... S>
constexpr bool promise_all(PolicyList<S...>) {
  return ((S::traits.clips.norm && S::traits.clips.value && S::traits.max_optimizers == any_number && S::traits.exact &&
           S::traits.resumable) &&
          ...);
}
template <class... P>
constexpr bool all_resumable(PolicyList<P...>) {
  return (P::traits.resumable && ...);
}
static_assert(promise_all(BuiltInStrategies{}) && all_resumable(BuiltInPrecisions{}));

// Strategies.
static_assert(!SingleDevice::traits.wraps_model && SingleDevice::traits.accepts_closure);
static_assert(DDP::traits.wraps_model && DDP::traits.accepts_closure && DDP::traits.shards == Shards::nothing);
static_assert(!DDP::traits.cuts_tensors && !delays_optimizer_setup<DDP> && !delays_optimizer_setup<SingleDevice>);
template <int level>
constexpr bool sharded_says(Shards what) {
  constexpr StrategyTraits traits = Sharded<level>::traits;
  return traits.wraps_model && traits.rebuilds_optimizers && !traits.cuts_tensors && !traits.delays_optimizer_setup &&
         !traits.accepts_closure && traits.shards == what;
}
static_assert(sharded_says<1>(Shards::optimizer_state) && sharded_says<2>(Shards::gradients));
static_assert(delays_optimizer_setup<FSDP> && FSDP::traits.wraps_model && !FSDP::traits.rebuilds_optimizers);
static_assert(FSDP::traits.shards == Shards::parameters && FSDP::traits.cuts_tensors && !FSDP::traits.accepts_closure);
static_assert(!Strategy<Sharded<0>> && !Strategy<Sharded<3>>);

// Precisions: compute, storage, scaler, closures, what is wrapped.
template <class P>
constexpr bool says(Format compute, Format storage, Scaler scaler, bool closures, bool wraps, bool full) {
  return P::traits.compute == compute && P::traits.storage == storage && P::traits.scaler == scaler &&
         P::traits.accepts_closure == closures && wraps_optimizers<P> == wraps &&
         P::traits.wraps_full_parameters == full;
}
using enum Format;
static_assert(says<FP32>(fp32, fp32, Scaler::none, true, false, false));
static_assert(says<FP64>(fp64, fp64, Scaler::none, true, false, false));
static_assert(says<BF16Mixed>(bf16, fp32, Scaler::none, true, false, false));
static_assert(says<FP16Mixed>(fp16, fp32, Scaler::collective, false, false, false));
static_assert(says<BF16True>(bf16, bf16, Scaler::none, true, false, false));
static_assert(says<FP16True>(fp16, fp16, Scaler::none, false, false, false));
static_assert(says<Apex<O0>>(fp32, fp32, Scaler::none, false, true, true));
static_assert(says<Apex<O1>>(fp16, fp32, Scaler::local, false, true, true));
static_assert(says<Apex<O2>>(fp16, fp16, Scaler::local, false, true, true));
static_assert(says<Apex<O3>>(fp16, fp16, Scaler::none, false, true, true));
static_assert(says<MasterWeights<BF16>>(bf16, bf16, Scaler::none, false, true, false));
static_assert(says<MasterWeights<FP16>>(fp16, fp16, Scaler::collective, false, true, false));
static_assert(!Precision<Apex<BF16>> && !Precision<MasterWeights<O2>> && !Precision<BF16> && !Precision<O2>);
static_assert(NumberFormat<BF16> && NumberFormat<double> && !NumberFormat<FP32> && OptimizationLevel<O3>);

// Options: nested aggregates with the defaults of the field, taken by an explicit constructor.
static_assert(std::is_constructible_v<FSDP, FSDP::Options> && !std::is_convertible_v<FSDP::Options, FSDP>);
static_assert(FSDP{}.options.reshard_after_forward && FSDP{}.options.prefetch == 1);
static_assert(FSDP{{.prefetch = 3}}.options.prefetch == 3 && FSDP{{.prefetch = 3}}.options.reshard_after_forward);
static_assert(!FSDP{{.reshard_after_forward = false}}.options.reshard_after_forward);
static_assert(FSDP{{.reshard_after_forward = to_ranks(2)}}.options.reshard_after_forward.slices() == 2);
static_assert(!std::is_convertible_v<int, ReshardAfterForward> && !std::is_convertible_v<ReshardAfterForward, bool>);
static_assert(DDP{}.options.bucket_mb == 25 && DDP{}.options.first_bucket_mb == 4 && !DDP{}.options.reduce_format);
static_assert(FP16Mixed{}.options.init == 65536.0 && FP16Mixed{}.options.growth == 2.0);
static_assert(FP16Mixed{}.options.backoff == 0.5 && FP16Mixed{}.options.interval == 2000);
static_assert(Apex<O2>{{.init = 4}}.options.init == 4 && MasterWeights<FP16>{{.interval = 7}}.options.interval == 7);
static_assert(std::is_same_v<Apex<O0>::Options, NoOptions> && std::is_same_v<MasterWeights<BF16>::Options, NoOptions>);

// An optimizer that nobody described is on the safe side.
struct Unknown {};
static_assert(!optimizer_traits<Unknown>.elementwise && !optimizer_traits<Unknown>.requires_closure);

}  // namespace

int main() {
  check::that(DDP::name == "ddp" && SingleDevice::name == "single" && FSDP::name == "fsdp", "names of strategies");
  check::that(Sharded<1>::name == "sharded-1" && Sharded<2>::name == "sharded-2", "names of the levels of Sharded");
  check::that(FP32::name == "fp32" && FP64::name == "fp64" && BF16Mixed::name == "bf16-mixed" &&
                  FP16Mixed::name == "fp16-mixed" && BF16True::name == "bf16-true" && FP16True::name == "fp16-true",
              "names of precisions");
  check::that(Apex<O0>::name == "apex-o0" && Apex<O1>::name == "apex-o1" && Apex<O2>::name == "apex-o2" &&
                  Apex<O3>::name == "apex-o3",
              "names of the levels of Apex");
  check::that(MasterWeights<BF16>::name == "master-bf16" && MasterWeights<FP16>::name == "master-fp16",
              "names of MasterWeights");
  std::puts("T29 B018 traits, options and names of 5 strategies and 12 precisions; misspelt traits; defaults");
  return check::summary("traits");
}
