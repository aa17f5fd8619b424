// SPDX-License-Identifier: Apache-2.0
// The smallest whole program: a line fitted to points, on as many ranks as you like (`--ranks 2`).
#include <dovetail/dovetail.hpp>

namespace dt = dovetail;

struct Line {  // the Task: what is trained
  auto configure_model() const { return torch::nn::Linear(1, 1); }
  auto configure_optimizers(const dt::Parameters& parameters) const { return dt::SGD(parameters, {.lr = 0.1}); }
  torch::Tensor training_step(torch::nn::LinearImpl& line, const dt::Batch& batch, dt::StepContext& step) const {
    auto loss = torch::mse_loss(line.forward(batch.data), batch.target);
    step.log("loss", loss);
    return loss;
  }
};

int main(int argc, char** argv) {
  dt::Launch launch(argc, argv);
  const auto x = torch::linspace(-1, 1, 256).unsqueeze(1), y = 3 * x - 2;

  dt::Trainer<dt::DDP, dt::FP32> trainer{{.max_epochs = 20, .batch_size = 16}};
  const auto result = trainer.fit(Line{}, dt::TensorDataset(x, y));

  const double slope = result.model->weight.item<double>(), offset = result.model->bias.item<double>();
  if (launch.ranks().rank == 0)
    std::printf("y = %.3f x + %.3f after %lld steps\n", slope, offset, (long long)result.steps);
  return std::abs(slope - 3) < 1e-3 && std::abs(offset + 2) < 1e-3 ? 0 : 1;
}
