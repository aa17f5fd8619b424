// SPDX-License-Identifier: Apache-2.0
// Bytes of tensors on every rank against model_state: what stays between steps, what a step needs on top, and what the
// optimizer needs for itself. Ten million parameters in twenty units; LONG: also fifty million, and four ranks.
#include <dovetail/dovetail.hpp>
#include <dovetail/core/memory_plan.hpp>
#include <dovetail/testing/live_bytes.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cmath>

#include "support/run_self.hpp"

namespace {

namespace dt = dovetail;
using dt::testing::LiveBytes;

constexpr int units = 20;

struct Net final : torch::nn::Module {
  explicit Net(int64_t width) {
    for (int i = 0; i < units; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), dt::Unit<torch::nn::Linear>(width, width)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x;
  }
  std::vector<dt::Unit<torch::nn::Linear>> layers;
};

struct Task {
  int64_t width;
  auto configure_model() const { return std::make_shared<Net>(width); }
  auto configure_optimizers(const dt::Parameters& parameters) const { return dt::AdamW(parameters); }
  torch::Tensor training_step(Net& net, const dt::Batch& batch, dt::StepContext&) const {
    return net.forward(batch.data).to(torch::kFloat32).square().mean();
  }
};

/// fp32 that watches the optimizer's step.
struct Watching final : dt::PrecisionBase {
  static constexpr std::string_view name = "fp32-watching";
  static constexpr dt::PrecisionTraits traits{};
  static inline int64_t in_step = 0;  ///< the most that a step took on top

  void before_step(dt::PrecisionContext&) {
    LiveBytes::start().reset_peak();
    before_ = LiveBytes::start().now();
  }
  void after_step(dt::PrecisionContext& run) {
    if (run.step() > 1) in_step = LiveBytes::start().peak() - before_;  // the first one makes the state
  }

 private:
  int64_t before_ = 0;
};

struct Seen {
  int64_t between = 0, peak = 0;  ///< bytes after a step, and at most in one
};

template <class Strategy, class Precision>
Seen bytes_of_fit(int64_t width, int64_t samples) {
  LiveBytes& bytes = LiveBytes::start();
  const int64_t before = bytes.now();
  Seen seen;
  const auto step_ended = [&](dt::LoopState&) {
    seen = {bytes.now() - before, bytes.peak() - before};
    bytes.reset_peak();
  };
  const torch::Tensor x = torch::ones({samples, width});
  dt::Trainer<Strategy, Precision> trainer({.batch_size = 1, .progress = false});
  trainer.fit(Task{width}, dt::TensorDataset(x, x), dt::LambdaCallback{.on_train_step_end = step_ended});
  return seen;
}

class Table {
 public:
  explicit Table(int64_t width) : width_(width), parameters_(units * (width * width + width)) {}

  template <class Strategy, class Precision>
  void row() {
    const int rank = dt::current_ranks().rank, ranks = dt::current_ranks().world_size;
    Watching::in_step = 0;
    const Seen seen = bytes_of_fit<Strategy, Precision>(width_, 3 * ranks);
    const dt::ModelState state = dt::model_state(Strategy::traits, Precision::traits, ranks);
    const double p = double(parameters_), slack = 8 << 20;
    const double unit = p / units, compute = dt::bytes_of(Precision::traits.compute);
    // Counted apart, as it is kept from step to step. FSDP: two gathered units, the gradients of two, and what arrives
    // of them from other ranks. Sharded: some buckets, of a unit each here. Autocast, only while a step computes: a
    // copy of each weight in the compute format.
    double received = 0, cast = 0;
    if (Strategy::traits.shards == dt::Shards::parameters)
      received = unit * 4 * (ranks == 1 ? 4 : 6);
    else if (Strategy::traits.shards != dt::Shards::nothing)
      received = ranks == 1 ? 0 : unit * 4 * 6;
    if (compute < 4 && Precision::traits.storage == dt::Format::fp32 &&
        Strategy::traits.shards != dt::Shards::parameters)
      cast = 2 * p;
    const std::string name = std::string(Strategy::name) + " " + std::string(Precision::name);
    const bool freed = double(seen.between) < p * (state.total() - state.gradients / 2);  // autograd's own gradients
    const double least = p * (state.total() - (freed ? state.gradients : 0));
    expect(double(seen.between) >= 0.97 * least, name + ": bytes between steps are fewer than the formula's");
    expect(double(seen.between) <= 1.03 * least + slack + received, name + ": bytes between steps");
    expect(double(seen.peak) <= 1.03 * p * state.total() + slack + received + cast, name + ": bytes in a step");
    expect(double(Watching::in_step) < 1 << 20,
           name + ": the optimizer's step takes " + std::to_string(Watching::in_step) + " bytes for itself");
    if (rank == 0)
      std::printf(
          "%-24s %d ranks: %5.2f bytes per parameter by the formula, %5.2f between steps, %5.2f at most in one\n",
          name.c_str(), ranks, state.total(), double(seen.between) / p, double(seen.peak) / p);
  }

  int wrong() const { return wrong_; }

 private:
  void expect(bool holds, const std::string& what) {
    if (holds) return;
    ++wrong_;
    std::printf("WRONG on rank %d: %s\n", dt::current_ranks().rank, what.c_str());
  }

  int64_t width_, parameters_;
  int wrong_ = 0;
};

template <class Strategy>
void rows(Table& table) {
  table.row<Strategy, Watching>();
  table.row<Strategy, dt::BF16Mixed>();
  table.row<Strategy, dt::BF16True>();
  table.row<Strategy, dt::MasterWeights<dt::BF16>>();
}

int measure(int64_t width) {
  torch::set_num_threads(1);
  Table table(width);
  if (dt::current_ranks().world_size == 1) rows<dt::SingleDevice>(table);
  rows<dt::DDP>(table);
  rows<dt::Sharded<1>>(table);
  rows<dt::Sharded<2>>(table);
  rows<dt::FSDP>(table);
  if (table.wrong() == 0) std::printf("rank %d: every row held\n", dt::current_ranks().rank);
  return table.wrong() == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    ::alarm(400);
    LiveBytes::start();
    const dt::Launch launch(argc, argv);
    return measure(std::atoll(argv[1]));
  }
  ::alarm(800);
  ::setenv("OMP_NUM_THREADS", "1", 1);
  support::Checks check;
  std::vector<std::pair<std::string, std::string>> runs{{"1", "707"}, {"2", "707"}};
  if (support::long_tests()) runs.insert(runs.end(), {{"4", "707"}, {"1", "1581"}, {"2", "1581"}, {"4", "1581"}});
  for (const auto& [ranks, width] : runs)
    check.ended(support::run_self({"--ranks", ranks, width}, {}, 300), 0,
                "model state of " + ranks + " ranks, units of " + width, {"every row held"});
  return check.summary();
}
