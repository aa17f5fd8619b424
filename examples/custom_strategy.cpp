// SPDX-License-Identifier: Apache-2.0
// A strategy of one's own: ranks train alone and average their parameters every few steps (local SGD). Averaging after
// each step of plain SGD is data parallel training, which is what this program checks against: `--ranks 2`.
#include <dovetail/dovetail.hpp>

namespace dt = dovetail;

struct LocalSGD final : dt::StrategyBase {
  static constexpr std::string_view name = "local-sgd";
  static constexpr dt::StrategyTraits traits{.exact = false};  // equal to one device only at its averaging points

  explicit LocalSGD(int every = 8) : every(every) {}

  void after_step(dt::StrategyContext& run) {
    if (run.step() % every != 0) return;
    for (const dt::Parameter& parameter : run.parameters())
      run.communicator().all_reduce_mean(parameter.tensor.detach());
  }

  int every;
};

struct Regression {
  auto configure_model() const { return torch::nn::Linear(4, 2); }
  auto configure_optimizers(const dt::Parameters& parameters) const { return dt::SGD(parameters, {.lr = 0.1}); }
  torch::Tensor training_step(torch::nn::LinearImpl& net, const dt::Batch& batch, dt::StepContext&) const {
    return torch::mse_loss(net.forward(batch.data), batch.target);
  }
};

template <class Strategy>
torch::Tensor train(Strategy strategy, const dt::TensorDataset& data) {
  dt::Trainer<Strategy, dt::FP32> trainer{{.max_epochs = 4, .batch_size = 8, .progress = false}, strategy};
  const auto result = trainer.fit(Regression{}, data);
  return torch::cat({result.model->weight.detach().flatten(), result.model->bias.detach()});
}

int main(int argc, char** argv) {
  dt::Launch launch(argc, argv);
  torch::manual_seed(3);
  const auto x = torch::randn({96, 4}), y = x.matmul(torch::randn({4, 2})) + 1;
  const dt::TensorDataset data(x, y);

  const torch::Tensor plain = train(dt::DDP{}, data), each_step = train(LocalSGD(1), data),
                      seldom = train(LocalSGD(8), data);
  const double same = (plain - each_step).abs().max().item<double>(),
               apart = (plain - seldom).abs().max().item<double>();
  if (launch.ranks().rank == 0)
    std::printf("averaging every step: %.1e from data parallel; every 8 steps: %.1e\n", same, apart);
  return same < 1e-6 && (launch.ranks().world_size == 1 || apart > same) ? 0 : 1;
}
