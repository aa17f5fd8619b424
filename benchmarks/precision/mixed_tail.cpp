// SPDX-License-Identifier: Apache-2.0
// The tail of a mixed-precision step: unscale, look for non-finite gradients, norm, clip, AdamW on fp32 masters, cast
// to the model's format. How many times faster Dovetail's two passes over memory are than the sequence of LibTorch's
// kernels, both in one process, one thread, interleaved. Printed: the median of the ratios of neighbouring steps, with
// the middle half of them, and the medians of both (CPU) times.

#include <dovetail/optim/adamw.hpp>
#include <dovetail/optim/clip.hpp>

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

namespace {

constexpr double scale = 1024, limit = 1, lr = 1e-4;

/// Masters, their gradients (scaled, as backward leaves them) and the model's own weights.
struct Home {
  Home(int64_t elements, torch::ScalarType low) {
    torch::manual_seed(1);
    master = torch::randn({elements}).set_requires_grad(true);
    gradient = torch::randn({elements}) * scale;
    master.mutable_grad() = gradient;
    model = master.detach().to(low);
    incoming_ = gradient.clone();
  }
  /// Before each step, for both sides: backward has just written the gradient, and the peer changes it in place.
  void restore() { gradient.copy_(incoming_); }
  torch::Tensor master, gradient, model;

 private:
  torch::Tensor incoming_;
};

class TwoPasses {
 public:
  TwoPasses(int64_t elements, torch::ScalarType low)
      : home(elements, low), optimizer_(dovetail::Parameters({{"p", {elements}, home.master}}), {.lr = lr}) {
    optimizer_.publish_into(home.master, home.model);
  }
  void step() {
    const double squared = dovetail::squared_norm(home.gradient);
    if (!std::isfinite(squared)) return;
    optimizer_.step(scale / dovetail::clip_coefficient(std::sqrt(squared) / scale, limit));
  }
  Home home;

 private:
  dovetail::AdamW optimizer_;
};

/// GradScaler's unscaling, clip_grad_norm_, the fused optimizer, copy_.
class FivePasses {
 public:
  FivePasses(int64_t elements, torch::ScalarType low) : home(elements, low) {}
  void step() {
    torch::NoGradGuard no_grad;
    found_.zero_();
    torch::_amp_foreach_non_finite_check_and_unscale_({home.gradient}, found_, inverse_);
    const torch::Tensor norm = torch::linalg_vector_norm(home.gradient);
    home.gradient.mul_(torch::clamp_max(limit / (norm + 1e-6), 1.0));
    if (found_.item<float>() != 0) return;
    steps_ += 1;
    torch::_fused_adamw_({home.master}, {home.gradient}, {first_}, {second_}, {}, {steps_}, lr, 0.9, 0.999, 1e-2, 1e-8,
                         false, false);
    home.model.copy_(home.master);
  }
  Home home;

 private:
  torch::Tensor first_ = torch::zeros_like(home.gradient), second_ = torch::zeros_like(home.gradient),
                steps_ = torch::zeros({}), found_ = torch::zeros({1}), inverse_ = torch::full({1}, float(1 / scale));
};

/// Of this process: both sides use one thread, and what else the machine does counts less.
double now() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

template <class F>
double seconds(F&& f) {
  const double start = now();
  f();
  return now() - start;
}

double median(std::vector<double>& values, double part = 0.5) {
  std::sort(values.begin(), values.end());
  return values[std::size_t(part * double(values.size() - 1))];
}

/// Small homes are stepped many times per measurement, so that they stay in the cache.
void compare(int64_t elements, torch::ScalarType low, int repeats) {
  TwoPasses ours(elements, low);
  FivePasses peer(elements, low);
  const int steps = int(std::max<int64_t>(1, (1 << 20) / elements));
  std::vector<double> ratios, own, other;
  const auto run_ours = [&] {
    double time = 0;
    for (int i = 0; i < steps; ++i) {
      ours.home.restore();
      time += seconds([&] { ours.step(); });
    }
    own.push_back(time / steps);
  };
  const auto run_peer = [&] {
    double time = 0;
    for (int i = 0; i < steps; ++i) {
      peer.home.restore();
      time += seconds([&] { peer.step(); });
    }
    other.push_back(time / steps);
  };
  for (int i = 0; i < repeats + 3; ++i) {
    i % 2 ? (run_ours(), run_peer()) : (run_peer(), run_ours());
    if (i >= 3) ratios.push_back(other.back() / own.back());
  }
  const double apart = (ours.home.master.detach() - peer.home.master.detach()).abs().max().item<double>();
  std::printf("%10lld elements, %s  %6.2fx  (%.2f-%.2f)  wanted 1.5x  %9.1f us, LibTorch %9.1f us  apart %.1e\n",
              (long long)elements, low == torch::kBFloat16 ? "bf16" : "fp16", median(ratios), median(ratios, 0.25),
              median(ratios, 0.75), 1e6 * median(own), 1e6 * median(other), apart);
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 41;
  torch::set_num_threads(1);
  std::printf("mixed-precision tail: five passes of LibTorch / two of Dovetail, one thread, %d pairs\n", repeats);
  for (auto low : {torch::kBFloat16, torch::kHalf})
    for (int64_t elements : {4096, 65536, 1 << 20, 10'000'000}) compare(elements, low, repeats);
}
