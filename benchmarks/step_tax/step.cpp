// SPDX-License-Identifier: Apache-2.0
// What a step of Trainer<SingleDevice, FP32> costs above the loop written by hand.
//
//   step hand|trainer LAYERS STEPS [CLIP]   one side alone, for callgrind (instructions.sh)
//   step allocations                        heap allocations per step of both, counted
//   step clip                               time with clip_norm(1.0), interleaved
#include <dovetail/dovetail.hpp>

#include "models.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <malloc.h>
#include <new>

namespace dt = dovetail;
using namespace step_tax;

namespace {
std::atomic<long> allocations{0};
}

// Everything that LibTorch and this program take from the heap comes through these two.
void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
extern "C" int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  *out = memalign(alignment, bytes);
  return *out ? 0 : ENOMEM;
}

namespace {

struct Task {
  int layers;
  auto configure_model() const { return std::make_shared<MLP>(layers); }
  auto configure_optimizers(const dt::Parameters& parameters) const {
    return dt::AdamW(parameters, {.lr = 1e-3, .weight_decay = 1e-2});
  }
  torch::Tensor training_step(MLP& net, const dt::Batch& batch, dt::StepContext& step) const {
    auto loss = torch::mse_loss(net.forward(batch.data), batch.target);
    step.log("loss", loss);
    return loss;
  }
};

double train(int layers, int64_t steps, double clip) {
  const torch::Tensor x = inputs(256);
  dt::TrainerOptions options{
      .max_epochs = 1 << 30, .max_steps = steps, .batch_size = 4, .shuffle = false, .log_every = 0, .progress = false};
  if (clip > 0) options.gradient_clip = dt::clip_norm(clip);
  return dt::Trainer<dt::SingleDevice, dt::FP32>(options).fit(Task{layers}, dt::TensorDataset(x, torch::sin(x))).loss;
}

/// Per step, from two lengths, so that set-up drops out.
template <class Side>
double allocations_per_step(Side&& side) {
  const auto count = [&](int64_t steps) {
    const long before = allocations;
    side(steps);
    return allocations - before;
  };
  count(8);
  return double(count(1064) - count(64)) / 1000;
}

template <class Side>
double seconds(Side&& side) {
  const auto start = std::chrono::steady_clock::now();
  side();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void compare_clipped(int layers) {
  const int64_t steps = 1500;
  std::vector<double> ratios;
  for (int pair = 0; pair < 9; ++pair) {
    const double trainer = seconds([&] { train(layers, steps, 1.0); });
    const double hand = seconds([&] { train_by_hand(layers, steps, 1.0); });
    if (pair > 0) ratios.push_back(trainer / hand);
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf("clip_norm(1.0), %2d layers 8x8: trainer / hand-written, time: median %.3f (%.3f to %.3f; reach 0.88)\n",
              layers, (ratios[3] + ratios[4]) / 2, ratios.front(), ratios.back());
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  const std::string mode = argc > 1 ? argv[1] : "all";
  if (argc >= 4) {
    const double clip = argc > 4 ? std::atof(argv[4]) : 0;
    const double loss = mode == "hand" ? train_by_hand(std::atoi(argv[2]), std::atoll(argv[3]), clip)
                                       : train(std::atoi(argv[2]), std::atoll(argv[3]), clip);
    std::printf("%s: loss %.9g\n", mode.c_str(), loss);
    return 0;
  }
  if (mode == "allocations" || mode == "all")
    for (int layers : {4, 16}) {
      const double trainer = allocations_per_step([&](int64_t steps) { train(layers, steps, 0); });
      const double hand = allocations_per_step([&](int64_t steps) { train_by_hand(layers, steps, 0); });
      std::printf(
          "%2d layers 8x8: heap allocations per step: trainer %.2f, hand-written %.2f, difference %+.2f (reach: "
          "none)\n",
          layers, trainer, hand, trainer - hand);
    }
  if (mode == "clip" || mode == "all")
    for (int layers : {16, 64}) compare_clipped(layers);
}
