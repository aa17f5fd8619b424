// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Everything. Includes, nothing else.

// The trainer first: compilers print the chain of includes above its reports.
#include <dovetail/trainer.hpp>

#include <dovetail/callback/early_stopping.hpp>
#include <dovetail/callback/lambda_callback.hpp>
#include <dovetail/callback/model_summary.hpp>
#include <dovetail/callback/progress_bar.hpp>
#include <dovetail/data/fashion_mnist.hpp>
#include <dovetail/dispatch.hpp>
#include <dovetail/launch/launch.hpp>
#include <dovetail/logger/csv.hpp>
#include <dovetail/logger/json_lines.hpp>
#include <dovetail/optim/adagrad.hpp>
#include <dovetail/optim/adam.hpp>
#include <dovetail/optim/adamw.hpp>
#include <dovetail/optim/schedule.hpp>
#include <dovetail/optim/sgd.hpp>
#include <dovetail/policies.hpp>
#include <dovetail/registry.hpp>
#include <dovetail/shard/full_parameters.hpp>
#include <dovetail/shard/unit.hpp>
