// SPDX-License-Identifier: Apache-2.0
// What a run must come to, by loops that share no code with the trainer: one device on the concatenated batch with
// LibTorch's own optimizers, and all ranks emulated one after the other in this process, in the same formats.
#pragma once

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <string_view>

#include "parity/models.hpp"

namespace parity {

constexpr double learning_rate = 0.05, momentum = 0.9, weight_decay = 0.01, adam_rate = 1e-2, adam_eps = 1e-3;

/// What a run leaves behind.
struct Outcome {
  int64_t steps = 0;                                    // taken
  double loss = 0;                                      // of the last step
  std::vector<std::pair<std::string, Tensor>> tensors;  // parameters, then buffers
  std::vector<Tensor> masks;
};

inline void keep_tensors(const torch::nn::Module& model, Outcome& outcome) {
  for (const auto& item : model.named_parameters())
    outcome.tensors.emplace_back(item.key(), item.value().detach().clone());
  for (const auto& item : model.named_buffers())
    outcome.tensors.emplace_back(item.key(), item.value().detach().clone());
}

/// What a precision means.
struct Formats {
  torch::ScalarType rounds_to = torch::kFloat32;  // the format with the fewest bits in it
  bool autocasts = false;                         // the forward runs under autocast to it
  bool casts_model = false;                       // weights and inputs are stored in it
  bool spares_batch_norm = false, has_masters = false;
  double scale = 0;  // the first loss scale; 0: no scaler

  [[nodiscard]] bool low() const { return rounds_to == torch::kBFloat16 || rounds_to == torch::kHalf; }
  /// The distance of neighbouring numbers just above 1.
  [[nodiscard]] double ulp() const {
    return rounds_to == torch::kBFloat16  ? 0x1p-7
           : rounds_to == torch::kHalf    ? 0x1p-10
           : rounds_to == torch::kFloat64 ? 0x1p-52
                                          : 0x1p-23;
  }
};

/// By the precision's name; a name that is not here fails the test, which must be told what it stands for.
inline std::optional<Formats> formats_of(std::string_view precision) {
  using torch::kBFloat16, torch::kHalf;
  if (precision == "fp32" || precision == "apex-o0") return Formats{};
  if (precision == "fp64") return Formats{.rounds_to = torch::kFloat64, .casts_model = true};
  if (precision == "bf16-mixed") return Formats{.rounds_to = kBFloat16, .autocasts = true};
  if (precision == "fp16-mixed" || precision == "apex-o1")
    return Formats{.rounds_to = kHalf, .autocasts = true, .scale = 65536};
  if (precision == "bf16-true") return Formats{.rounds_to = kBFloat16, .casts_model = true};
  if (precision == "fp16-true" || precision == "apex-o3") return Formats{.rounds_to = kHalf, .casts_model = true};
  if (precision == "apex-o2")
    return Formats{
        .rounds_to = kHalf, .casts_model = true, .spares_batch_norm = true, .has_masters = true, .scale = 65536};
  if (precision == "master-bf16") return Formats{.rounds_to = kBFloat16, .casts_model = true, .has_masters = true};
  if (precision == "master-fp16")
    return Formats{.rounds_to = kHalf, .casts_model = true, .has_masters = true, .scale = 65536};
  return {};
}

/// The rows of an epoch in the order in which they are dealt out.
inline Tensor row_order(const Setting& setting, int64_t samples, int64_t epoch,
                        Tensor (*shuffled)(int64_t, uint64_t, int64_t)) {
  return setting.shuffle ? shuffled(samples, Setting::seed, epoch) : torch::arange(samples);
}
using Shuffle = Tensor (*)(int64_t samples, uint64_t seed, int64_t epoch);

/// The textbook loop: one model, one batch that holds what all ranks and micro-batches of a step have, the mean loss
/// over it, LibTorch's optimizer.
inline Outcome train_plainly(const Setting& setting, int ranks, torch::ScalarType dtype, Shuffle shuffled) {
  torch::manual_seed(Setting::seed);
  const auto net = make_net<std::type_identity_t>(setting.model);
  if (dtype == torch::kFloat64) net->to(dtype);
  std::vector<Tensor> trained;
  for (const Tensor& parameter : net->parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (setting.optimizer == OptimizerKind::adam)
    optimizer = std::make_unique<torch::optim::Adam>(trained, torch::optim::AdamOptions(adam_rate).eps(adam_eps));
  else
    optimizer = std::make_unique<torch::optim::SGD>(
        trained, torch::optim::SGDOptions(learning_rate)
                     .weight_decay(weight_decay)
                     .momentum(setting.optimizer == OptimizerKind::momentum ? momentum : 0));
  const int64_t samples = setting.samples(ranks), rows_per_step = setting.accumulate * ranks * Setting::batch_size;
  auto [x, y] = make_data(setting.model, samples);
  if (x.is_floating_point()) x = x.to(dtype);

  Outcome outcome;
  for (int64_t epoch = 0; epoch < Setting::epochs; ++epoch) {
    const Tensor order = row_order(setting, samples, epoch, shuffled);
    for (int64_t first = 0; first < samples; first += rows_per_step) {
      const Tensor rows = order.slice(0, first, std::min(samples, first + rows_per_step));
      optimizer->zero_grad();
      const Tensor loss = net->loss(x.index_select(0, rows), y.index_select(0, rows));
      loss.backward();
      if (setting.clip && setting.clip->kind == dovetail::ClipOptions::Kind::norm)
        torch::nn::utils::clip_grad_norm_(trained, setting.clip->limit);
      else if (setting.clip)
        torch::nn::utils::clip_grad_value_(trained, setting.clip->limit);
      optimizer->step();
      outcome.loss = loss.item<double>();
      ++outcome.steps;
    }
  }
  keep_tensors(*net, outcome);
  return outcome;
}

}  // namespace parity
