// SPDX-License-Identifier: Apache-2.0
// What a step costs under each strategy, as a ratio to a loop written by hand: one flat all-reduce after backward, and
// the fused optimizer. Two ranks, one thread each. Blocks of a few steps of the trainer and of two hand-written loops
// follow each other in the same processes; the ratio of those two to each other is the control.
//
//   step [CYCLES]           everything; starts its own ranks
//   step units              host time per unit and pass, one rank
//   step only NAME [CYCLES] --ranks 2   one comparison
#include <dovetail/dovetail.hpp>

#include "hand_loop.hpp"
#include "models.hpp"
#include "ratios.hpp"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>

namespace dt = dovetail;
using namespace sharding;

namespace {

/// What a block took: on the clock, and of the processor, all threads of this rank together.
struct Took {
  double seconds, processor;
};

class Watch {
 public:
  Took took() const { return {now(CLOCK_MONOTONIC) - seconds_, now(CLOCK_PROCESS_CPUTIME_ID) - processor_}; }

 private:
  static double now(clockid_t clock) {
    timespec time{};
    ::clock_gettime(clock, &time);
    return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
  }
  double seconds_ = now(CLOCK_MONOTONIC), processor_ = now(CLOCK_PROCESS_CPUTIME_ID);
};

template <class Model>
struct Task {
  std::function<std::shared_ptr<Model>()> make;
  auto configure_model() const { return make(); }
  auto configure_optimizers(const dt::Parameters& parameters) const {
    return dt::AdamW(parameters, {.lr = 1e-3, .weight_decay = 1e-2});
  }
  torch::Tensor training_step(Model& model, const dt::Batch& batch, dt::StepContext&) const {
    return model.loss(batch.data, batch.target);
  }
};

/// What is compared: a name, what to reach, and how long a block is.
struct Case {
  std::string name;
  double reach;
  double clip = 0;
  int block = 1;
};

/// `cycles` times: a block of the trainer, then one of each hand-written loop, in alternating order. The hand-written
/// loops run inside the trainer's own callback, between two of its steps.
template <class Strategy, class Sharded, class Whole>
void compare(const Case& what, int cycles, Strategy strategy, std::function<std::shared_ptr<Sharded>()> sharded,
             std::function<std::shared_ptr<Whole>()> whole, const torch::Tensor& x, const torch::Tensor& y,
             int64_t batch) {
  dt::Communicator comm = dt::Communicator::connect(dt::current_ranks());
  torch::manual_seed(1);
  HandLoop<Whole> first(whole(), comm, what.clip), second(whole(), comm, what.clip);
  const int64_t batches = x.size(0) / batch;
  int64_t next = comm.rank();
  const auto by_hand = [&](HandLoop<Whole>& loop) {
    comm.barrier();
    const Watch watch;
    for (int step = 0; step < what.block; ++step, next += comm.size()) {
      const int64_t row = next % batches * batch;
      loop.step(x.narrow(0, row, batch), y.narrow(0, row, batch));
    }
    return watch.took();
  };

  Ratios ratios, control, processor;
  double per_step = 0;
  int cycle = 0;
  Watch watch;
  const auto after_step = [&](dt::LoopState& state) {
    if (state.step() % what.block != 0) return;
    const Took trainer = watch.took();
    const bool swapped = cycle % 2 == 1;
    Took hand[2];
    for (int turn = 0; turn < 2; ++turn) hand[turn] = by_hand((turn == 1) == swapped ? first : second);
    if (++cycle > 2) {  // the first ones warm up
      ratios.add(2 * trainer.seconds / (hand[0].seconds + hand[1].seconds));
      processor.add(2 * trainer.processor / (hand[0].processor + hand[1].processor));
      control.add(hand[swapped].seconds / hand[!swapped].seconds);
      per_step += (hand[0].seconds + hand[1].seconds) / 2 / what.block;
    }
    comm.barrier();
    watch = Watch();
  };
  dt::TrainerOptions options{.max_epochs = 1 << 30,
                             .max_steps = int64_t(cycles + 2) * what.block,
                             .batch_size = batch,
                             .shuffle = false,
                             .log_every = 0,
                             .progress = false};
  if (what.clip > 0) options.gradient_clip = dt::clip_norm(what.clip);
  dt::Trainer<Strategy, dt::FP32> trainer(options, strategy);
  const auto result =
      trainer.fit(Task<Sharded>{sharded}, dt::TensorDataset(x, y), dt::LambdaCallback{.on_train_step_end = after_step});
  if (comm.rank() == 0) {
    std::printf("%-42s %s, reach %.2f; control %s; processor time %s; hand-written %.2f ms; %.2f collectives\n",
                what.name.c_str(), ratios.text().c_str(), what.reach, control.text().c_str(), processor.text().c_str(),
                1000 * per_step / cycles, double(result.communication.calls) / double(result.steps));
    std::fflush(stdout);
  }
}

template <class Strategy>
void compare_gpt(const Case& what, int cycles, Strategy strategy, GPTSize size = {}) {
  torch::manual_seed(7);
  const torch::Tensor text = torch::randint(256, {512, size.context + 1});
  compare<Strategy, GPT<dt::Unit>, GPT<Plain>>(
      what, cycles, strategy, [size] { return std::make_shared<GPT<dt::Unit>>(size); },
      [size] { return std::make_shared<GPT<Plain>>(size); }, text.narrow(1, 0, size.context).contiguous(),
      text.narrow(1, 1, size.context).contiguous(), 16);
}

void compare_layers(Case what, int cycles, int layers, dt::FSDP strategy) {
  torch::manual_seed(7);
  const torch::Tensor x = torch::randn({512, 8});
  what.block = 10;
  compare<dt::FSDP, Layers<dt::Unit>, Layers<Plain>>(
      what, cycles, strategy, [layers] { return std::make_shared<Layers<dt::Unit>>(layers); },
      [layers] { return std::make_shared<Layers<Plain>>(layers); }, x, torch::sin(x), 4);
}

int compare_all(const std::string& only, int cycles) {
  const auto wanted = [&](const std::string& name) { return only.empty() || name.find(only) != std::string::npos; };
  const auto gpt = [&](const Case& what, auto strategy) {
    if (wanted(what.name)) compare_gpt(what, cycles, strategy);
  };
  gpt({"DDP, GPT", 1.02}, dt::DDP{});
  gpt({"Sharded<2>, GPT", 1.03}, dt::Sharded<2>{});
  gpt({"FSDP, GPT, a unit per block", 1.10}, dt::FSDP{});
  gpt({"FSDP, GPT, clip_norm (by clip_grad_norm_)", 1.15, 1.0}, dt::FSDP{});
  for (const int layers : {16, 64}) {
    const std::string name = "FSDP, " + std::to_string(layers) + " layers 8x8";
    if (wanted(name)) compare_layers({name, 1.3}, cycles, layers, dt::FSDP{});
    if (wanted(name)) compare_layers({name + ", none kept", 15}, cycles, layers, dt::FSDP{{.keep_below = 0}});
  }
  const GPTSize large{.layers = 3, .width = 512};
  if (wanted("10M")) compare_gpt({"Sharded<2>, GPT of 10M", 1.03}, cycles / 4, dt::Sharded<2>{}, large);
  return 0;
}

/// Seconds a step of FSDP at one rank, without set-up.
template <class Model>
double seconds_per_step(int layers, int64_t steps) {
  const torch::Tensor x = torch::ones({64, 8});
  double seconds = 0;
  Watch watch;
  const auto after_step = [&](dt::LoopState& state) {
    if (state.step() == 3) watch = Watch();  // the order of units is known, all memory is there
    seconds = watch.took().processor;
  };
  dt::Trainer<dt::FSDP, dt::FP32> trainer(
      {.max_epochs = 1 << 30, .max_steps = steps + 3, .batch_size = 4, .log_every = 0, .progress = false},
      dt::FSDP{{.keep_below = 0}});
  trainer.fit(Task<Model>{[layers] { return std::make_shared<Model>(layers); }}, dt::TensorDataset(x, torch::sin(x)),
              dt::LambdaCallback{.on_train_step_end = after_step});
  return seconds / double(steps);
}

/// What a unit costs in one of the two passes, forward and backward: a step with units minus the same without.
void host_time_per_unit() {
  for (const int layers : {16, 64, 256, 1024}) {
    const int64_t steps = std::max(4, 4096 / layers);
    Ratios microseconds;
    for (int turn = 0; turn < 12; ++turn) {
      const double with = seconds_per_step<Layers<dt::Unit>>(layers, steps);
      const double without = seconds_per_step<Layers<Plain>>(layers, steps);
      if (turn > 0) microseconds.add(1e6 * (with - without) / layers / 2);
    }
    std::printf("host time per unit and pass, one rank, %4d units of Linear 8x8: %s us, reach 10\n", layers,
                microseconds.text().c_str());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "only") {
    const dt::Launch launch(argc, argv);
    return compare_all(argc > 2 ? argv[2] : "", argc > 3 ? std::atoi(argv[3]) : 40);
  }
  if (mode == "units") return host_time_per_unit(), 0;
  host_time_per_unit();
  const std::string cycles = argc > 1 ? argv[1] : "40";
  return std::system((std::string(argv[0]) + " only '' " + cycles + " --ranks 2").c_str()) == 0 ? 0 : 1;
}
