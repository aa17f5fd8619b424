// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

namespace dovetail {

/// Puts modules into evaluation mode for as long as it lives. Then each gets back the mode that it had, so a part that
/// the user keeps in evaluation mode (a frozen batch norm) is not woken.
class EvaluationMode {
 public:
  /// The whole model.
  explicit EvaluationMode(torch::nn::Module& model)
      : EvaluationMode(model, [](const torch::nn::Module&) { return true; }) {}

  /// Those of its modules that `chosen` says.
  template <class Chosen>
  EvaluationMode(torch::nn::Module& model, Chosen&& chosen) {
    for (auto& module : model.modules())
      if (chosen(*module)) before_.emplace_back(module, module->is_training());
    for (auto& [module, training] : before_)
      if (module->is_training()) module->eval();
  }

  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

  ~EvaluationMode() {  // parents first: train() goes down to children, which then get their own
    for (auto& [module, training] : before_)
      if (module->is_training() != training) module->train(training);
  }

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> before_;
};

}  // namespace dovetail
