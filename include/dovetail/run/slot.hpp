// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

namespace dovetail {

/// One trainable parameter on its way from the model to the optimizer. The same tensor may play several of the roles.
struct Slot {
  std::string name;            ///< as the model registers it; the first name where tensors are tied
  std::vector<int64_t> shape;  ///< in the model
  torch::Tensor model;         ///< the module's own tensor
  torch::Tensor held;      ///< what configure_optimizers is given: `model`, an alias of it, or this rank's piece (1-D)
  torch::Tensor stepped;   ///< what the optimizer steps: `held`, or its fp32 master
  torch::Tensor main;      ///< accumulated gradient of `held`'s elements, fp32 or fp64; undefined: autograd keeps it
  torch::Tensor arrivals;  ///< alias into which autograd adds; its version counter moves when a gradient arrives
  uint32_t seen_version = 0;  ///< of `arrivals`, at the last step
  bool taken = false;         ///< said before `reduce` by a strategy that has no `arrivals`: a gradient came
  bool arrived = true;        ///< did a gradient arrive since the last step?
  int64_t piece_begin =
      -1;              ///< where in `model`, in elements of storage order, a piece starts; -1: `held` is all of it
  int optimizer = -1;  ///< which optimizer steps it; -1: none
  int64_t frozen = 0;  ///< in how many backward passes of this window it required no gradient
  bool rests = false;  ///< in all of them: no gradient is missing, and the optimizer leaves it alone
};

}  // namespace dovetail
