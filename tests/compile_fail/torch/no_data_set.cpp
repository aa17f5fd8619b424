// SPDX-License-Identifier: Apache-2.0
// Data whose fetch has another signature, with the real trainer.
// expect: dovetail-E027
// forbid: constraints not satisfied
// forbid: no matching function
// max-lines: 14
#include <dovetail/dovetail.hpp>

namespace dt = dovetail;

struct Task {
  auto configure_model() const { return torch::nn::Linear(1, 1); }
  auto configure_optimizers(const dt::Parameters& parameters) const { return dt::SGD(parameters, {.lr = 0.1}); }
  torch::Tensor training_step(torch::nn::LinearImpl& net, const dt::Batch& batch, dt::StepContext&) const {
    return net.forward(batch.data).mean();
  }
};

struct Rows {
  int64_t size() const { return 4; }
#ifdef DOVETAIL_BROKEN
  dt::Batch fetch(int64_t) const {
    return {};
  }
#else
  void fetch(std::span<const int64_t> indices, dt::Batch& out) const {
    out.data = out.target = torch::ones({int64_t(indices.size()), 1});
  }
#endif
};

int main() {
  dt::Trainer<dt::SingleDevice, dt::FP32> trainer;
  trainer.fit(Task{}, Rows{});
}
