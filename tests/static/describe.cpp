// SPDX-License-Identifier: Apache-2.0

// The plan in words, from the same constants that run it.
#include "check.hpp"

#include <algorithm>
#include <dovetail/core/describe.hpp>
#include <dovetail/registry.hpp>
#include <string>

using namespace dovetail;

namespace {

static_assert(BatchPlan{.batch_size = 8, .accumulate = 2, .ranks = 3}.global() == 48);

template <class S, class P>
void one_pair() {
  if constexpr (compatible<S, P>) {
    const std::string text = describe<S, P>({.batch_size = 5, .accumulate = 3, .ranks = 2});
    check::contains(text, S::name);
    check::contains(text, P::name);
    check::contains(text, "5 per rank x 3 accumulated x 2 ranks = 30 samples per step\n");
    std::string order;
    hana::for_each(setup_plan<S, P>,
                   [&](auto stage) { order.append(order.empty() ? "" : " -> ").append(name_of(stage())); });
    check::contains(text, "set-up     " + order + "\n");
    check::that(std::count(text.begin(), text.end(), '\n') == 5, "five lines");
  }
}

template <class... Pairs>
void every_pair(PairList<Pairs...>) {
  (one_pair<typename Pairs::Strategy, typename Pairs::Precision>(), ...);
}

/// Bytes per parameter of a pair, in hundredths.
template <class S, class P>
constexpr int state(int ranks) {
  return static_cast<int>(model_state(S::traits, P::traits, ranks).total() * 100 + 0.5);
}
static_assert(state<SingleDevice, FP32>(1) == 1600 && state<DDP, FP32>(4) == 1600 && state<DDP, FP64>(2) == 3200);
static_assert(state<Sharded<1>, FP32>(4) == 1000 && state<Sharded<2>, FP32>(4) == 700 && state<FSDP, FP32>(4) == 400);
static_assert(state<Sharded<1>, BF16Mixed>(3) == 1067 && state<FSDP, FP16Mixed>(2) == 800);
static_assert(state<DDP, MasterWeights<BF16>>(2) == 1800 && state<FSDP, MasterWeights<FP16>>(2) == 900);
static_assert(state<DDP, Apex<O2>>(2) == 1800 && state<DDP, Apex<O1>>(2) == 1600);
static_assert(state<Sharded<1>, BF16True>(2) == 900 && state<Sharded<2>, BF16True>(2) == 700);
static_assert(state<DDP, BF16True>(2) == 1200 && state<DDP, Apex<O3>>(2) == 1200);
static_assert(shard_group_size(FSDP{}, 8) == 8 && shard_group_size(FSDP{{.shard_group = 2}}, 8) == 2);
constexpr bool groups(FSDP::Options options, int shard, int reshard) {
  const GroupSizes sizes = options.group_sizes(8);
  return sizes.all == 8 && sizes.shard == shard && sizes.reshard == reshard;
}
static_assert(groups({}, 8, 1) && groups({.shard_group = 4}, 4, 1) && groups({.reshard_after_forward = false}, 8, 1));
static_assert(groups({.reshard_after_forward = to_ranks(2)}, 8, 2) &&
              groups({.reshard_after_forward = to_ranks(4), .shard_group = 4}, 4, 1));
static_assert(shard_group_size(DDP{}, 8) == 8 && shard_group_size(SingleDevice{}, 1) == 1);

}  // namespace

int main() {
  every_pair(BuiltInPairs{});
  check::that(describe<DDP, Apex<O2>>({.batch_size = 32, .accumulate = 1, .ranks = 1}) ==
                  "strategy   ddp (every rank holds everything)\n"
                  "precision  apex-o2 (computes in fp16, keeps weights in fp16, wraps optimizers, loss scaler on each "
                  "rank)\n"
                  "set-up     environment -> build_model -> convert_model -> place_model -> make_optimizers -> "
                  "wrap_optimizers -> wrap_model -> bind_schedulers -> restore\n"
                  "batch      32 per rank x 1 accumulated x 1 rank = 32 samples per step\n"
                  "memory     18 bytes per parameter on each rank with Adam: weights 2, gradients 4, optimizer 12\n",
              "the whole text of DDP with Apex O2");
  check::that(describe<FSDP, FP32>({.ranks = 64, .shard_group = 8})
                      .find("strategy   fsdp (parameters, gradients and optimizer state cut over ranks, one replica "
                            "on each 8)\n") == 0,
              "how many ranks share a replica");
  check::that(describe<FSDP, FP32>({.ranks = 64, .shard_group = 8}).find("memory     2 bytes per") != std::string::npos,
              "the memory of a rank is that of its shard group");
  check::that(describe<FSDP, FP32>({.ranks = 8, .shard_group = 8}) == describe<FSDP, FP32>({.ranks = 8}),
              "one replica is the rule");
  std::puts("the plan of 48 pairs in words");
  return check::summary("describe");
}
