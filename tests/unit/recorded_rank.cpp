// SPDX-License-Identifier: Apache-2.0
// Runs of one rank of a large world, without the others.
#include <dovetail/policies.hpp>
#include <dovetail/optim/adamw.hpp>
#include <dovetail/callback/lambda_callback.hpp>
#include <dovetail/strategy/predict.hpp>
#include <dovetail/testing/recorded_rank.hpp>
#include <dovetail/trainer.hpp>

#include <catch2/catch.hpp>

namespace dt = dovetail;

namespace {

struct Net final : torch::nn::Module {
  Net() {
    for (int i = 0; i < 4; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), dt::Unit<torch::nn::Linear>(40, 40)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x;
  }
  std::vector<dt::Unit<torch::nn::Linear>> layers;
};

struct Task {
  auto configure_model() const { return std::make_shared<Net>(); }
  auto configure_optimizers(const dt::Parameters& parameters) const { return dt::AdamW(parameters); }
  torch::Tensor training_step(Net& net, const dt::Batch& batch, dt::StepContext&) const {
    return net.forward(batch.data).square().mean();
  }
};

constexpr int64_t elements = 4 * (40 * 40 + 40);

struct Recorded {
  dt::CommunicationCounts sent, last;  ///< in all, and in the last step
  int64_t steps = 0, held = 0;
};

/// Two steps as one rank of a world.
template <class Strategy>
Recorded record(int rank, int world_size, Strategy strategy = {}) {
  const dt::testing::RecordedRank as(rank, world_size);
  const torch::Tensor x = torch::ones({2 * world_size, 40});
  Recorded seen;
  dt::CommunicationCounts before;
  const auto look = [&](dt::LoopState& state) {
    const dt::CommunicationCounts now = state.run.comm.counts();
    static_cast<dt::Count&>(seen.last) = now - before;
    for (std::size_t i = 0; i < now.each.size(); ++i) seen.last.each[i] = now.each[i] - before.each[i];
    before = now;
    seen.held = 0;
    for (const dt::Slot& slot : state.run.gradients.slots) seen.held += slot.held.numel();
  };
  dt::Trainer<Strategy, dt::FP32> trainer({.batch_size = 1, .shuffle = false, .progress = false}, strategy);
  const auto result = trainer.fit(Task{}, dt::TensorDataset(x, x), dt::LambdaCallback{.on_train_step_end = look});
  seen.sent = result.communication;
  seen.steps = result.steps;
  return seen;
}

}  // namespace

TEST_CASE("any rank of a world of ten thousand can be recorded alone", "[comm][recorded]") {
  const auto each = [](auto strategy) {
    const int world_size = 10000;
    for (const int rank : {0, 4321, 9999}) {
      const Recorded seen = record(rank, world_size, strategy);
      CAPTURE(rank);
      CHECK(seen.steps == 2);
      CHECK(seen.sent.calls > 0);
      CHECK(seen.sent.calls == record(0, 2, strategy).sent.calls);  // how many collectives does not depend on the world
    }
  };
  each(dt::DDP{});
  each(dt::DDP{{.reduce_format = dt::Format::bf16}});
  each(dt::Sharded<1>{});
  each(dt::Sharded<2>{});
  each(dt::FSDP{{.keep_below = 0}});
}

TEST_CASE("the parts of recorded ranks make up the model", "[comm][recorded]") {
  for (const int world_size : {2, 3, 64}) {
    int64_t sharded = 0, fsdp = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      sharded += record<dt::Sharded<2>>(rank, world_size).held;
      fsdp += record<dt::FSDP>(rank, world_size, dt::FSDP{{.keep_below = 0}}).held;
      CHECK(record<dt::DDP>(rank, world_size).held == elements);
      if (world_size == 64) rank += 62;  // first and last
    }
    if (world_size == 64) continue;
    CHECK(sharded == elements);
    CHECK(fsdp == elements);
  }
}

TEST_CASE("a recorded rank sends what the formulas say", "[comm][recorded]") {
  const int world_size = 8;
  const auto step_bytes = [&](auto strategy) {
    const dt::CommunicationCounts sent = record(3, world_size, strategy).sent;
    return std::pair(sent.of(dt::Collective::all_reduce).bytes, sent);
  };
  const auto [reduced, ddp] = step_bytes(dt::DDP{});
  CHECK(reduced == 2 * (2 * 7 * elements * 4 / 8));  // two steps of 2 m P
  const dt::DDP in_bf16{{.reduce_format = dt::Format::bf16}};
  const dt::CommunicationCounts rounded = record(3, world_size, in_bf16).last;
  const auto net = std::make_shared<Net>();
  CHECK(rounded == dt::predict(in_bf16, {.model = *net, .precision = dt::FP32::traits, .ranks = world_size}).counts);
  CHECK(rounded.of(dt::Collective::reduce_scatter).bytes == 7 * elements * 2 / 8);
  CHECK(rounded.of(dt::Collective::all_gather).bytes == 7 * elements * 4 / 8 + 7 * 8 * dt::agreed_numbers);
  const dt::CommunicationCounts sharded = step_bytes(dt::Sharded<1>{}).second;
  CHECK(sharded.of(dt::Collective::reduce_scatter).bytes == 2 * (7 * elements * 4 / 8));
}

TEST_CASE("C-72 a recorded rank of replicas on groups of ranks", "[comm][recorded]") {
  const int world_size = 64;
  const auto step = [&](dt::FSDP::Options options, int rank) {
    options.keep_below = 1;
    const Recorded seen = record(rank, world_size, dt::FSDP{options});
    const auto net = std::make_shared<Net>();
    const auto predicted =
        dt::predict(dt::FSDP{options}, {.model = *net, .precision = dt::FP32::traits, .ranks = world_size});
    CAPTURE(rank, options.shard_group);
    CHECK(seen.last == predicted.counts);
    return seen;
  };
  const int64_t unit = elements / 4;
  for (const int group : {1, 2, 8, 32, 64}) {
    const Recorded seen = step({.shard_group = group}, 37);
    const auto share = [](int64_t bytes, int64_t ranks) { return bytes * (ranks - 1) / ranks; };
    const int64_t part = (unit + group - 1) / group, padded = part * group * 4, replicas = world_size / group;
    const int64_t agreed = (world_size - 1) * 8 * (1 + dt::agreed_numbers);
    CHECK(seen.last.of(dt::Collective::all_gather).bytes == 7 * share(padded, group) + agreed);
    CHECK(seen.last.of(dt::Collective::reduce_scatter).bytes == 4 * share(padded, group));
    const int64_t sum = (4 * part + replicas - 1) / replicas * replicas * 4;  // of all parts, over the replicas
    CHECK(seen.last.of(dt::Collective::all_reduce) ==
          (replicas > 1 ? dt::Count{1, 2 * share(sum, replicas)} : dt::Count{}));
    int64_t held = 0;  // of one replica
    for (int rank = 0; rank < group; ++rank) held += record(rank, world_size, dt::FSDP{{.shard_group = group}}).held;
    CHECK(held == elements);
  }
  step({.reshard_after_forward = dt::to_ranks(4), .shard_group = 8}, 63);
  step({.reshard_after_forward = dt::to_ranks(8), .reduce_format = dt::Format::bf16}, 0);
  step({.prefetch = 2, .shard_group = 16, .max_gathered = 2}, 17);
}
