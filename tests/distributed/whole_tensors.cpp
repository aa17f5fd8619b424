// SPDX-License-Identifier: Apache-2.0
// Sharded under optimizers that are not known to be element-wise: parts end at borders of tensors, so it is as right as
// under DDP. LibTorch's Adagrad is one that makes its state before the rebuild.
#include <dovetail/launch/launch.hpp>
#include <dovetail/policies.hpp>
#include <dovetail/trainer.hpp>

namespace dt = dovetail;

/// Each tensor moves by lr in the direction of its gradient, whatever the gradient's norm: not element-wise.
class NormalizedSGD : public torch::optim::Optimizer {
 public:
  NormalizedSGD(std::vector<torch::Tensor> parameters, double lr)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<torch::optim::SGDOptions>(lr)),
        lr_(lr) {}

  torch::Tensor step(LossClosure = nullptr) override {
    torch::NoGradGuard no_grad;
    for (auto& group : param_groups())
      for (auto& p : group.params())
        if (p.grad().defined() && p.numel() > 0) p.sub_(p.grad() / (p.grad().norm() + 1e-3), lr_);
    return {};
  }

 private:
  double lr_;
};

struct Task {
  bool adagrad = false;

  auto configure_model() const {
    return torch::nn::Sequential(torch::nn::Linear(7, 5), torch::nn::Tanh(), torch::nn::Linear(5, 3), torch::nn::Tanh(),
                                 torch::nn::Linear(3, 1));
  }
  std::unique_ptr<torch::optim::Optimizer> configure_optimizers(const dt::Parameters& parameters) const {
    if (adagrad)
      return std::make_unique<torch::optim::Adagrad>(parameters.tensors(), torch::optim::AdagradOptions(0.05));
    return std::make_unique<NormalizedSGD>(parameters.tensors(), 0.05);
  }
  torch::Tensor training_step(torch::nn::SequentialImpl& net, const dt::Batch& batch, dt::StepContext&) const {
    return torch::mse_loss(net.forward(batch.data), batch.target);
  }
};

template <class Strategy>
torch::Tensor train(const dt::TensorDataset& data, bool adagrad) {
  dt::Trainer<Strategy, dt::FP32> trainer{{.max_epochs = 2, .batch_size = 4, .progress = false}};
  std::vector<torch::Tensor> flat;
  for (const auto& p : trainer.fit(Task{adagrad}, data).model->parameters()) flat.push_back(p.detach().flatten());
  return torch::cat(flat);
}

static int compare(int ranks) {
  torch::manual_seed(3);
  const auto x = torch::randn({50, 7});
  const dt::TensorDataset data(x, torch::sin(x.sum(1, true)));
  int failed = 0;
  for (const bool adagrad : {false, true}) {
    const torch::Tensor ddp = train<dt::DDP>(data, adagrad);
    for (const auto& [name, trained] : {std::pair{"sharded-1", train<dt::Sharded<1>>(data, adagrad)},
                                        std::pair{"sharded-2", train<dt::Sharded<2>>(data, adagrad)}}) {
      const double apart = (trained - ddp).abs().max().item<double>();
      failed += !(apart <= 1e-6);
      if (dt::current_ranks().rank == 0)
        std::printf("T7 P47 %d ranks, %s, %s: %.1e from ddp, tensors of 35, 5, 15, 3, 3, 1 elements kept whole\n",
                    ranks, name, adagrad ? "torch::optim::Adagrad" : "normalized gradients", apart);
    }
  }
  return failed;
}

int main(int argc, char** argv) {
  if (argc == 1) {  // starts itself with each number of ranks
    for (const char* ranks : {"2", "3"})
      if (std::system((std::string(argv[0]) + " compare --ranks " + ranks).c_str()) != 0) return 1;
    return 0;
  }
  dt::Launch launch(argc, argv);
  return compare(launch.ranks().world_size);
}
