// SPDX-License-Identifier: Apache-2.0
// A precision of one's own: the forward multiplies matrices in bf16, gradients are rounded to bf16 before the step, and
// the weights stay fp32. Checked against a loop written by hand: the same bits.
#include <dovetail/dovetail.hpp>

namespace dt = dovetail;

struct RoundedGradients final : dt::PrecisionBase {
  static constexpr std::string_view name = "rounded-gradients";
  static constexpr dt::PrecisionTraits traits{.compute = dt::Format::bf16};

  dt::AutocastGuard forward_guard(dt::PrecisionContext& run) { return {run.device.type(), torch::kBFloat16}; }

  void before_step(dt::PrecisionContext& run) {
    run.gradients.for_each_flat([](torch::Tensor& gradient) { gradient.copy_(gradient.to(torch::kBFloat16)); });
  }
};

struct Regression {
  auto configure_model() const { return torch::nn::Linear(4, 2); }
  auto configure_optimizers(const dt::Parameters& parameters) const { return dt::SGD(parameters, {.lr = 0.125}); }
  torch::Tensor training_step(torch::nn::LinearImpl& net, const dt::Batch& batch, dt::StepContext&) const {
    return torch::mse_loss(net.forward(batch.data), batch.target);
  }
};

torch::Tensor train_by_hand(const torch::Tensor& x, const torch::Tensor& y, uint64_t seed) {
  torch::manual_seed(seed);
  torch::nn::Linear net(4, 2);
  for (int64_t first = 0; first < x.size(0); first += 8) {
    torch::Tensor loss;
    {
      dt::AutocastGuard guard(torch::kCPU, torch::kBFloat16);
      loss = torch::mse_loss(net(x.narrow(0, first, 8)), y.narrow(0, first, 8));
    }
    loss.backward();
    torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
      parameter.sub_(parameter.grad().to(torch::kBFloat16).to(torch::kFloat32), 0.125);
      parameter.mutable_grad().reset();
    }
  }
  return torch::cat({net->weight.detach().flatten(), net->bias.detach()});
}

int main(int argc, char** argv) {
  dt::Launch launch(argc, argv);
  torch::manual_seed(3);
  const auto x = torch::randn({96, 4}), y = x.matmul(torch::randn({4, 2})) + 1;

  dt::Trainer<dt::DDP, RoundedGradients> trainer{{.batch_size = 8, .seed = 11, .shuffle = false, .progress = false}};
  const auto result = trainer.fit(Regression{}, dt::TensorDataset(x, y));
  const auto trained = torch::cat({result.model->weight.detach().flatten(), result.model->bias.detach()});
  if (launch.ranks().world_size > 1) return 0;  // the loop by hand knows one rank
  const double apart = (trained - train_by_hand(x, y, 11)).abs().max().item<double>();
  std::printf("largest difference from the loop by hand after %lld steps: %g\n", (long long)result.steps, apart);
  return apart == 0 ? 0 : 1;
}
