// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/policy_base.hpp>
#include <dovetail/run/agreed_numbers.hpp>
#include <dovetail/strategy/step_traffic.hpp>

#include <concepts>

namespace dovetail {

/// Does a Strategy, or what does its work in a run, tell what a step sends?
template <class Run>
concept TellsTraffic = requires(Run& run, const StepShape& step) {
  { run.traffic(step) } -> std::same_as<StepTraffic>;
};

/// What a step sends: what the strategy tells, and what the loop adds for what ranks agree on. An optimizer that
/// evaluates the loss by itself sends this at each evaluation, and 8 bytes of each rank once a step before.
template <TellsTraffic Run>
StepTraffic traffic_of(Run& run, const StepShape& step) {
  StepTraffic all = run.traffic(step);
  const auto tell = [&](int64_t numbers) {
    all.counts.plan(Collective::all_gather, step.ranks * numbers * int64_t(sizeof(double)), step.ranks);
  };
  const int64_t overflows = step.passes > 1 || step.scale_per_backward ? step.passes : 0;
  if (step.agrees) tell(agreed_numbers + step.norms + overflows);
  for (int64_t i = 1; step.scale_per_backward && i < step.micro_batches; ++i) tell(overflows);
  return all;
}

/// What a step under this strategy will send, from the model as it is when training begins (cast, where the precision
/// casts it) and the options, before anything is cut.
template <class Strategy>
requires TellsTraffic<typename RunOf<Strategy>::type> StepTraffic predict(const Strategy& strategy,
                                                                          const StepShape& step) {
  typename RunOf<Strategy>::type run(strategy);
  return traffic_of(run, step);
}

}  // namespace dovetail
