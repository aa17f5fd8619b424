// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/precision/convert.hpp>

#include <memory>
#include <vector>

namespace dovetail {

/// For the forward of a batch that only keeps its rank busy: it must leave no trace. In training mode batch norms would
/// take the padding into their running statistics, and refuse to normalise a single row. So they rest as long as this
/// lives; for any other batch nothing happens.
class RestingBatchNorms {
 public:
  RestingBatchNorms(torch::nn::Module& model, bool padding) {
    if (!padding) return;
    for (auto& module : model.modules()) {
      if (!is_batch_norm(*module) || !module->is_training()) continue;
      module->eval();
      resting_.push_back(module);
    }
  }
  RestingBatchNorms(const RestingBatchNorms&) = delete;
  RestingBatchNorms& operator=(const RestingBatchNorms&) = delete;
  ~RestingBatchNorms() {
    for (auto& module : resting_) module->train();
  }

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> resting_;
};

}  // namespace dovetail
