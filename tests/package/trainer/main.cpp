// SPDX-License-Identifier: Apache-2.0
// The smallest training run of another project.
#include <torch/version.h>

#include <dovetail/dovetail.hpp>
#include <iostream>
#include <memory>
#include <span>

namespace dt = dovetail;

// y = 2 x for x = 0, 0.01, ... , 0.63.
struct Line {
  int64_t size() const { return 64; }
  void fetch(std::span<const int64_t> indices, dt::Batch& out) const {
    const auto count = static_cast<int64_t>(indices.size());
    out.data = torch::empty({count, 1});
    for (int64_t i = 0; i < count; ++i) out.data[i][0] = 0.01 * static_cast<double>(indices[static_cast<size_t>(i)]);
    out.target = 2 * out.data;
  }
};

struct LineData {
  Line train_data() const { return {}; }
};

struct Regression {
  auto configure_model() const { return std::make_shared<torch::nn::LinearImpl>(1, 1); }
  auto configure_optimizers(const dt::Parameters& p) const { return dt::AdamW(p, {.lr = 0.1, .weight_decay = 0}); }
  torch::Tensor training_step(torch::nn::LinearImpl& net, const dt::Batch& batch, dt::StepContext&) const {
    return torch::mse_loss(net.forward(batch.data), batch.target);
  }
};

int main() {
  dt::Trainer<dt::SingleDevice, dt::FP32> trainer{{.max_epochs = 1, .batch_size = 16, .progress = false}};
  trainer.fit(Regression{}, LineData{});
  std::cout << "trained on " << TORCH_VERSION << '\n';
}
