// SPDX-License-Identifier: Apache-2.0
// The program that README.md shows; the README's copy is taken from here.
#ifndef PRECISION
#define PRECISION dt::BF16Mixed
#endif
// [readme]
#include <dovetail/dovetail.hpp>
namespace dt = dovetail;

struct Net : torch::nn::Module {
  Net()
      : hidden(register_module("hidden", dt::Unit<torch::nn::Linear>(784, 128))),
        classes(register_module("classes", dt::Unit<torch::nn::Linear>(128, 10))) {}
  torch::Tensor forward(torch::Tensor images) { return classes(torch::relu(hidden(images.flatten(1)))); }
  dt::Unit<torch::nn::Linear> hidden, classes;  // what FSDP gathers and frees, one by one
};

struct Classifier {  // the Task: what is trained
  auto configure_model() const { return std::make_shared<Net>(); }
  auto configure_optimizers(const dt::Parameters& p) const {  // the trainer hands over what may be optimized
    return dt::AdamW(p, {.lr = 1e-3, .weight_decay = 1e-2});
  }
  torch::Tensor training_step(Net& net, const dt::Batch& batch, dt::StepContext& step) const {
    auto loss = torch::cross_entropy_loss(net.forward(batch.data), batch.target);
    step.log("loss", loss);
    return loss;
  }
  void validation_step(Net& net, const dt::Batch& batch, dt::StepContext& step) const {
    step.log("accuracy", net.forward(batch.data).argmax(1).eq(batch.target).to(torch::kFloat32).mean());
  }
};

int main(int argc, char** argv) {
  dt::Launch launch(argc, argv);  // torchrun, mpirun, or --ranks N by itself
  dt::Trainer<dt::FSDP, PRECISION> trainer{{.max_epochs = 3, .gradient_clip = dt::clip_norm(1.0)},
                                           dt::FSDP{{.prefetch = 1}}};
  trainer.fit(Classifier{}, dt::FashionMNIST{}, dt::EarlyStopping{{.monitor = "accuracy", .mode = dt::Mode::max}});
}
