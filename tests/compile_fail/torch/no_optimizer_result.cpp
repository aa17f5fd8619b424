// SPDX-License-Identifier: Apache-2.0
// configure_optimizers that returns a class which is no optimizer, with the real trainer.
// expect: dovetail-E026
// forbid: constraints not satisfied
// forbid: no matching function
// max-lines: 14
#include <dovetail/dovetail.hpp>

#include <vector>

namespace dt = dovetail;

struct Task {
  auto configure_model() const { return torch::nn::Linear(1, 1); }
  auto configure_optimizers(const dt::Parameters& parameters) const {
#ifdef DOVETAIL_BROKEN
    std::vector<std::unique_ptr<dt::SGD>> list;
    list.push_back(std::make_unique<dt::SGD>(parameters, dt::SGDOptions{.lr = 0.1}));
    return list;
#else
    return std::make_unique<dt::SGD>(parameters, dt::SGDOptions{.lr = 0.1});
#endif
  }
  torch::Tensor training_step(torch::nn::LinearImpl& net, const dt::Batch& batch, dt::StepContext&) const {
    return net.forward(batch.data).mean();
  }
};

int main() {
  dt::Trainer<dt::SingleDevice, dt::FP32> trainer;
  trainer.fit(Task{}, dt::TensorDataset(torch::ones({4, 1}), torch::ones({4, 1})));
}
