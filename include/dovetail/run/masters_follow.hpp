// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/context.hpp>
#include <dovetail/shard/full_parameters.hpp>

namespace dovetail::detail {

/// Masters follow parameters that were written in a scope of full_parameters, which the next step would undo otherwise.
/// One whose rounding is what its parameter holds keeps its digits.
class MastersFollow final : public ParameterHolder {
 public:
  explicit MastersFollow(RunContext& run) : run_(run) {}

  void written(const ParameterSet& parameters) override {
    torch::NoGradGuard no_grad;
    for (const Slot& slot : run_.gradients.slots) {
      if (!slot.stepped.defined() || slot.stepped.is_same(slot.held)) continue;
      if (!parameters.contains(slot.model.unsafeGetTensorImpl())) continue;
      const torch::Tensor master = slot.stepped.detach(), now = slot.held.detach();
      const torch::Tensor is_rounding = master.to(now.scalar_type()).eq(now);
      torch::Tensor(master).copy_(torch::where(is_rounding, master, now.to(master.scalar_type())));
    }
  }

 private:
  RunContext& run_;
};

}  // namespace dovetail::detail
