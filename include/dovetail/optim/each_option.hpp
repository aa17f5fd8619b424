// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <dovetail/optim/options.hpp>

#include <tuple>

namespace dovetail {

/// Calls `visit(name, value)` for everything that the options of a parameter group say: of our optimizers and of
/// LibTorch's. Of others only the learning rate is known.
inline void each_option(const torch::optim::OptimizerOptions& options, const detail::ListedOptions::Visit& visit) {
  namespace optim = torch::optim;
  const auto of_adam = [&](const auto& adam) {
    visit("lr", adam.lr());
    visit("beta1", std::get<0>(adam.betas()));
    visit("beta2", std::get<1>(adam.betas()));
    visit("eps", adam.eps());
    visit("weight_decay", adam.weight_decay());
    visit("amsgrad", adam.amsgrad());
  };
  if (const auto* listed = dynamic_cast<const detail::ListedOptions*>(&options)) {
    listed->each(visit);
  } else if (const auto* adam = dynamic_cast<const optim::AdamOptions*>(&options)) {
    of_adam(*adam);
  } else if (const auto* adamw = dynamic_cast<const optim::AdamWOptions*>(&options)) {
    of_adam(*adamw);
  } else if (const auto* sgd = dynamic_cast<const optim::SGDOptions*>(&options)) {
    visit("lr", sgd->lr());
    visit("momentum", sgd->momentum());
    visit("dampening", sgd->dampening());
    visit("weight_decay", sgd->weight_decay());
    visit("nesterov", sgd->nesterov());
  } else if (const auto* adagrad = dynamic_cast<const optim::AdagradOptions*>(&options)) {
    visit("lr", adagrad->lr());
    visit("lr_decay", adagrad->lr_decay());
    visit("weight_decay", adagrad->weight_decay());
    visit("initial_accumulator_value", adagrad->initial_accumulator_value());
    visit("eps", adagrad->eps());
  } else if (const auto* rmsprop = dynamic_cast<const optim::RMSpropOptions*>(&options)) {
    visit("lr", rmsprop->lr());
    visit("alpha", rmsprop->alpha());
    visit("eps", rmsprop->eps());
    visit("weight_decay", rmsprop->weight_decay());
    visit("momentum", rmsprop->momentum());
    visit("centered", rmsprop->centered());
  } else if (const auto* lbfgs = dynamic_cast<const optim::LBFGSOptions*>(&options)) {
    visit("lr", lbfgs->lr());
    visit("max_iter", double(lbfgs->max_iter()));
    visit("max_eval", double(lbfgs->max_eval().value_or(-1)));
    visit("tolerance_grad", lbfgs->tolerance_grad());
    visit("tolerance_change", lbfgs->tolerance_change());
    visit("history_size", double(lbfgs->history_size()));
    visit("line_search_fn", lbfgs->line_search_fn().has_value());
  } else {
    visit("lr", options.get_lr());
  }
}

}  // namespace dovetail
