// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/communicator.hpp>
#include <dovetail/core/policy_base.hpp>
#include <dovetail/core/traits.hpp>
#include <dovetail/optim/optimizer_set.hpp>
#include <dovetail/optim/parameters.hpp>
#include <dovetail/run/gradients.hpp>
#include <dovetail/run/grad_scaler.hpp>
#include <dovetail/run/options.hpp>
#include <dovetail/shard/cut_parameters.hpp>

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <vector>

namespace dovetail {

/// The state of one run: what policies see and change. Stages of set-up change its values, never its type.
class RunContext {
 public:
  RunContext(TrainerOptions options, StrategyTraits strategy, PrecisionTraits precision,
             std::string_view strategy_name = {}, std::string_view precision_name = {})
      : options(std::move(options)),
        strategy(strategy),
        precision(precision),
        strategy_name(strategy_name),
        precision_name(precision_name) {}
  RunContext(const RunContext&) = delete;
  RunContext& operator=(const RunContext&) = delete;

  int rank() const { return comm.rank(); }
  int world_size() const { return comm.size(); }
  Communicator& communicator() { return comm; }

  /// Optimizer steps taken so far. In after_step it counts the step that was just taken.
  int64_t step() const { return steps_taken; }

  /// What the optimizer may hold, in the order of registration: all parameters, or this rank's pieces of them.
  const Parameters& parameters() const { return held; }

  /// Is this micro-batch the last one before the optimizer steps?
  bool at_boundary() const { return micro_batch + 1 == window; }

  /// Is the norm of each optimizer's gradients needed: to clip by it, or to see an overflow?
  bool needs_norms() const {
    return scaler || (options.gradient_clip && options.gradient_clip->kind == ClipOptions::Kind::norm);
  }

  /// Sums the accumulated gradients over all ranks, in place. A Strategy that does nothing else in `reduce` is data
  /// parallel.
  void sum_gradients() {
    for (torch::Tensor& buffer : gradients.buffers)
      options.deterministic ? comm.all_reduce_deterministic(buffer) : comm.all_reduce(buffer);
    gradients.summed = true;
  }

  // What was asked for.
  const TrainerOptions options;
  const StrategyTraits strategy;
  const PrecisionTraits precision;
  const std::string_view strategy_name, precision_name;
  std::vector<std::pair<std::string, std::string>> policy_options{};  ///< names and values, as text

  // Where the run is.
  Communicator comm;
  torch::Device device{torch::kCPU};

  // What is trained.
  std::shared_ptr<torch::nn::Module> module;
  MainGradients gradients;  ///< with one slot for each trainable parameter
  CutParameters cut;        ///< what the strategy has cut before wrap_model; whoever casts weights casts these parts
  Parameters held;          ///< what configure_optimizers was given
  OptimizerSet optimizers;
  std::optional<GradScaler> scaler;              ///< of the loss; of the first one, where each has its own
  std::vector<GradScaler> further_scalers;       ///< of a Task's further losses, where the Precision has one for each
  int losses = 1;                                ///< how many training_step returns
  bool scale_per_backward = false;               ///< scales move after every backward pass, not once per step (Apex)
  std::optional<torch::ScalarType> input_dtype;  ///< floating inputs are cast to it before the forward

  // How far it is.
  int64_t epoch = 0;
  int64_t steps_taken = 0;        ///< optimizer steps; schedules and max_steps count these
  int64_t steps_attempted = 0;    ///< with the skipped ones
  int64_t micro_batch = 0;        ///< within the accumulation window; during a backward pass, its number in the window
  bool in_training_step = false;  ///< the user's code runs: a gradient that comes now is not the run's
  int64_t window = 1;             ///< micro-batches of this window, backward passes if each loss has its own; the last
                                  ///< one of an epoch may be shorter
};

}  // namespace dovetail
