// SPDX-License-Identifier: Apache-2.0
// A convolutional network on Fashion-MNIST, with any pair of built-in policies:
//   fashion_mnist --ranks 2 --strategy fsdp --precision bf16-mixed --epochs 3
#include "network.hpp"

#include <CLI/CLI.hpp>

namespace dt = dovetail;

struct Classifier {
  double learning_rate = 2e-3;
  int64_t total_steps = 1;

  auto configure_model() const { return std::make_shared<ConvNet>(); }

  auto configure_optimizers(const dt::Parameters& parameters) const {
    return dt::scheduled(
        dt::AdamW(parameters, {.lr = learning_rate, .eps = 1e-4, .weight_decay = 1e-2}),
        dt::WarmupCosine{.warmup_steps = total_steps / 20, .total_steps = total_steps, .min_factor = 0.02});
  }

  torch::Tensor training_step(ConvNet& net, const dt::Batch& batch, dt::StepContext& step) const {
    auto loss = torch::cross_entropy_loss(net.forward(batch.data), batch.target);
    step.log("loss", loss);
    return loss;
  }

  void validation_step(ConvNet& net, const dt::Batch& batch, dt::StepContext& step) const {
    const auto scores = net.forward(batch.data);
    step.log("loss", torch::cross_entropy_loss(scores, batch.target));
    step.log("accuracy", scores.argmax(1).eq(batch.target).to(torch::kFloat32).mean());
  }
};

int main(int argc, char** argv) {
  dt::Launch launch(argc, argv);

  std::string strategy = "fsdp", precision = "bf16-mixed", data = dt::FashionMNIST::default_folder();
  dt::TrainerOptions options{.max_epochs = 3, .batch_size = 64, .run_directory = "runs/fashion_mnist"};
  double clip = 1.0;
  Classifier task;

  CLI::App app("Trains a convolutional network on Fashion-MNIST. --ranks N starts N ranks.");
  app.add_option("--strategy", strategy, "single, ddp, sharded-1, sharded-2, fsdp")->capture_default_str();
  app.add_option("--precision", precision, "fp32, bf16-mixed, ... ; an unknown name lists them")->capture_default_str();
  app.add_option("--epochs", options.max_epochs)->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "samples per rank and micro-batch")->capture_default_str();
  app.add_option("--accumulate", options.accumulate, "micro-batches per step")->capture_default_str();
  app.add_option("--lr", task.learning_rate)->capture_default_str();
  app.add_option("--clip", clip, "gradient norm; 0: no clipping")->capture_default_str();
  app.add_option("--seed", options.seed)->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_option("--limit-batches", options.limit_train_batches, "training batches per epoch; -1: all")
      ->capture_default_str();
  app.add_option("--limit-validation-batches", options.limit_validation_batches)->capture_default_str();
  app.add_option("--data", data, "folder of the four IDX files")->capture_default_str();
  app.add_option("--device", options.device, "cpu, or cuda where it was built with dovetail::cuda")
      ->capture_default_str();
  app.add_option("--run-directory", options.run_directory)->capture_default_str();
  app.add_flag("--deterministic", options.deterministic, "sums over ranks in rank order");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    throw dt::Error(dt::ExitCode::arguments, std::string(error.what()) + " (--help lists the options)");
  }
  if (!(task.learning_rate >= 0 && std::isfinite(task.learning_rate)))
    throw dt::Error(dt::ExitCode::arguments,
                    "--lr is " + std::to_string(task.learning_rate) + ", expected a finite number from 0 on.");
  if (clip != 0) options.gradient_clip = dt::clip_norm(clip);

  const dt::FashionMNIST fashion(data);
  dt::dispatch<Classifier>(strategy, precision, [&]<class Strategy, class Precision>(dt::Pair<Strategy, Precision>) {
    dt::check_options(options);
    const int64_t ranks = launch.ranks().world_size, samples = fashion.train_data().size();
    int64_t batches = (samples + ranks * options.batch_size - 1) / (ranks * options.batch_size);
    if (options.limit_train_batches >= 0) batches = std::min(batches, options.limit_train_batches);
    task.total_steps =
        std::max<int64_t>(1, options.max_epochs * ((batches + options.accumulate - 1) / options.accumulate));

    dt::Trainer<Strategy, Precision> trainer(options);
    const auto result = trainer.fit(task, fashion);
    if (const double* accuracy = result.validation.find("accuracy"); accuracy && launch.ranks().rank == 0)
      std::printf("test accuracy %.4f after %lld epochs (%lld steps)\n", *accuracy, (long long)result.epochs,
                  (long long)result.steps);
  });
}
