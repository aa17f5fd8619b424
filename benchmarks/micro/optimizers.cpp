// SPDX-License-Identifier: Apache-2.0
// How many times faster dovetail::AdamW is than torch::optim::AdamW, both in one process, one thread, steps
// interleaved. Printed: the median of the ratios of neighbouring steps, with the middle half of them.

#include <dovetail/optim/adamw.hpp>

#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

struct Model {
  std::vector<torch::Tensor> params;
  dovetail::Parameters named;
};

void add(Model& model, torch::Tensor param) {
  model.named.push_back({"p" + std::to_string(model.params.size()), param.sizes().vec(), param});
  model.params.push_back(std::move(param));
}

Model separate(int count, std::vector<int64_t> shape) {
  Model model;
  for (int i = 0; i < count; ++i) {
    add(model, torch::randn(shape).set_requires_grad(true));
    model.params.back().mutable_grad() = torch::randn(shape);
  }
  return model;
}

Model flat_home(int count, int64_t elements) {
  Model model;
  const torch::Tensor data = torch::randn({count * elements}), grads = torch::randn({count * elements});
  for (int i = 0; i < count; ++i) {
    add(model, data.narrow(0, i * elements, elements).detach().set_requires_grad(true));
    model.params.back().mutable_grad() = grads.narrow(0, i * elements, elements);
  }
  return model;
}

template <class F>
double seconds(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Ratio torch::optim / dovetail. One step of the peer is set against as many of ours as take about as long.
void compare(const char* what, Model model, double wanted, int repeats) {
  Model peer_model;
  for (const auto& param : model.params) {
    add(peer_model, param.detach().clone().set_requires_grad(true));
    peer_model.params.back().mutable_grad() = param.grad().clone();
  }
  dovetail::AdamW ours(model.named, {.lr = 1e-3, .weight_decay = 1e-2});
  torch::optim::AdamW peer(peer_model.params, torch::optim::AdamWOptions(1e-3).weight_decay(1e-2));
  for (int i = 0; i < 3; ++i) ours.step(), peer.step();
  const int steps = std::max(1, int(seconds([&] { peer.step(); }) / seconds([&] { ours.step(); })));
  std::vector<double> ratios;
  for (int i = 0; i < repeats; ++i) {
    double own = 0, other = 0;
    const auto run_ours = [&] {
      own = seconds([&] {
              for (int s = 0; s < steps; ++s) ours.step();
            }) /
            steps;
    };
    if (i % 2) run_ours();
    other = seconds([&] { peer.step(); });
    if (i % 2 == 0) run_ours();
    ratios.push_back(other / own);
  }
  std::sort(ratios.begin(), ratios.end());
  const auto at = [&](double part) { return ratios[std::size_t(part * double(ratios.size() - 1))]; };
  std::printf("%-42s %7.1fx  (%.1f-%.1f)  wanted %.1fx  %zu tensors to the kernel\n", what, at(0.5), at(0.25), at(0.75),
              wanted, ours.runs());
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 101;
  torch::set_num_threads(1);
  torch::manual_seed(1);
  std::printf("AdamW: torch::optim::AdamW / dovetail::AdamW, one thread, %d pairs\n", repeats);
  compare("40 tensors of 256x256", separate(40, {256, 256}), 2.5, repeats);
  compare("10,000 tensors of 64, a list", separate(10000, {64}), 20, repeats);
  compare("10,000 tensors of 64, a flat home", flat_home(10000, 64), 100, repeats);
}
