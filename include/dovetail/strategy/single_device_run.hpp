// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/context.hpp>
#include <dovetail/strategy/single_device.hpp>
#include <dovetail/strategy/step_traffic.hpp>

namespace dovetail {

/// SingleDevice in one run: it makes sure that there is one rank.
class SingleDeviceRun : public StrategyBase {
 public:
  explicit SingleDeviceRun(const SingleDevice&) {}

  void environment(StrategyContext& run) {
    if (run.world_size() > 1)
      throw Error(ExitCode::arguments, "the strategy 'single' runs on one rank, but " +
                                           std::to_string(run.world_size()) +
                                           " were started: use ddp, sharded or fsdp, or start one rank.");
  }

  StepTraffic traffic(const StepShape&) const { return {}; }
};

template <>
struct RunOf<SingleDevice> {
  using type = SingleDeviceRun;
};

}  // namespace dovetail
