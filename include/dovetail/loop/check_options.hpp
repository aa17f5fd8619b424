// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/start_rules.hpp>
#include <dovetail/launch/error.hpp>
#include <dovetail/run/options.hpp>

#include <cmath>
#include <limits>

namespace dovetail {

/// Refuses options that no run can have, before anything starts.
/// @throws Error(arguments)
inline void check_options(const TrainerOptions& options) {
  const auto refuse = [](const std::string& what, const std::string& cure) {
    throw Error(ExitCode::arguments, what + ": " + cure);
  };
  const auto at_least = [&](const char* name, int64_t value, int64_t least) {
    if (value < least)
      refuse(std::string(name) + " is " + std::to_string(value), "it must be at least " + std::to_string(least) + ".");
  };
  at_least("batch_size", options.batch_size, 1);
  if (options.batch_size > std::numeric_limits<int32_t>::max())
    refuse("batch_size is " + std::to_string(options.batch_size), "it must be at most 2147483647.");
  at_least("accumulate", options.accumulate, 1);
  at_least("max_epochs", options.max_epochs, 0);
  at_least("max_steps", options.max_steps, -1);
  at_least("limit_train_batches", options.limit_train_batches, -1);
  at_least("limit_validation_batches", options.limit_validation_batches, -1);
  at_least("sanity_validation_batches", options.sanity_validation_batches, 0);
  at_least("validate_every", options.validate_every, 0);
  at_least("log_every", options.log_every, 0);
  if (options.gradient_clip && !(options.gradient_clip->limit > 0 && std::isfinite(options.gradient_clip->limit)))
    refuse("the limit of gradient_clip is " + std::to_string(options.gradient_clip->limit),
           "it must be above 0 and finite.");
}

}  // namespace dovetail
