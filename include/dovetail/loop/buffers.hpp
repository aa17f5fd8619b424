// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/context.hpp>

namespace dovetail {

/// Makes the model's buffers the same on every rank: floating ones are averaged, others are taken from rank 0. Done
/// before validation and at the end, never per forward: in between each rank's batch statistics are its own.
inline void synchronize_buffers(RunContext& run) {
  if (run.world_size() == 1) return;
  torch::NoGradGuard no_grad;
  for (auto& item : run.module->named_buffers()) {
    torch::Tensor buffer = item.value().detach();
    if (!buffer.defined() || buffer.numel() == 0) continue;
    if (!buffer.is_floating_point()) {
      run.comm.broadcast(buffer, 0);
      continue;
    }
    run.options.deterministic ? run.comm.all_reduce_deterministic(buffer) : run.comm.all_reduce(buffer);
    buffer.div_(run.world_size());
  }
}

}  // namespace dovetail
