// SPDX-License-Identifier: Apache-2.0
// A Task whose step returns no loss, with the real trainer.
// expect: dovetail-E02
// forbid: no member named
// forbid: no matching function
// max-lines: 14
#include <dovetail/dovetail.hpp>

namespace dt = dovetail;

struct Task {
  auto configure_model() const { return torch::nn::Linear(1, 1); }
  auto configure_optimizers(const dt::Parameters& parameters) const { return dt::SGD(parameters, {.lr = 0.1}); }
#ifdef DOVETAIL_BROKEN
  void training_step(torch::nn::LinearImpl&, const dt::Batch&, dt::StepContext&) const {}
#else
  torch::Tensor training_step(torch::nn::LinearImpl& net, const dt::Batch& batch, dt::StepContext&) const {
    return net.forward(batch.data).mean();
  }
#endif
};

int main() {
  dt::Trainer<dt::SingleDevice, dt::FP32> trainer;
  trainer.fit(Task{}, dt::TensorDataset(torch::ones({4, 1}), torch::ones({4, 1})));
}
