// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/optim/clip.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace dovetail {

/// Options of a Trainer, apart from those of its policies. Written with designated initializers.
struct TrainerOptions {
  int64_t max_epochs = 1;
  int64_t max_steps = -1;                      ///< taken optimizer steps; -1: no limit
  int64_t batch_size = 32;                     ///< samples per rank and micro-batch
  int64_t accumulate = 1;                      ///< micro-batches per optimizer step
  std::optional<ClipOptions> gradient_clip{};  ///< clip_norm(x), clip_value(x)
  uint64_t seed = 1;                           ///< of weights, order of samples and each rank's random stream
  bool shuffle = true;                         ///< training samples in a new order each epoch
  bool drop_last = false;                      ///< leave out an epoch's last batch where it is not full on every rank
  int64_t limit_train_batches = -1;            ///< micro-batches per epoch and rank; -1: all
  int64_t limit_validation_batches = -1;       ///< the same for validation
  int64_t sanity_validation_batches = 2;       ///< validation batches before the first step; 0: none
  int64_t validate_every = 1;                  ///< epochs; 0: never
  int64_t log_every = 50;                      ///< optimizer steps between rows for loggers
  bool deterministic = false;                  ///< sums over ranks in rank order: the same bits for every layout
  bool find_unused = false;  ///< a parameter without gradient is skipped (all ranks) or zero (some) instead of an error
  std::string device = "cpu";   ///< "cpu", or "cuda" for the GPU of the rank's number on its machine
  bool progress = true;         ///< print the plan, the model summary and a progress line on rank 0
  std::string run_directory{};  ///< where metrics and the resolved options go; empty: nowhere
};

}  // namespace dovetail
