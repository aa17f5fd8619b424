// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/backward_walk.hpp>
#include <dovetail/shard/forward_walk.hpp>
#include <dovetail/shard/planned_units.hpp>
#include <dovetail/strategy/fsdp_plan.hpp>
#include <dovetail/strategy/step_traffic.hpp>

#include <algorithm>
#include <map>
#include <vector>

namespace dovetail::detail {

/// How many others a unit is inside of.
inline int depth_of(const FSDPPlan& plan, std::size_t unit) {
  return int(std::count_if(plan.units.begin(), plan.units.end(), [&](const FSDPPlan::Unit& other) {
    const bool is_root = other.name.empty();  // the model itself is a unit
    return &other != &plan.units[unit] && (is_root || plan.units[unit].name.starts_with(other.name + "."));
  }));
}

/// FSDPRun::traffic: the walks that a step takes, over units that are only counted.
inline StepTraffic fsdp_traffic(const FSDP::Options& options, const StepShape& step) {
  const FSDPPlan plan = plan_fsdp(step.model, slots_of(step.model), options, step.precision, step.ranks);
  std::vector<std::vector<PlannedUnits::Segment>> units(plan.units.size());
  std::vector<PlannedUnits::Segment> root;
  for (const auto& segment : plan.segments) {
    const auto bytes = [&](torch::ScalarType dtype) {
      return segment.layout.size() * int64_t(c10::elementSize(dtype));
    };
    (segment.unit == UnitTree::root ? root : units[std::size_t(segment.unit)])
        .push_back({bytes(segment.gathered), bytes(segment.reduced)});
  }
  UnitSchedule schedule;
  for (std::size_t u = 0; u < units.size(); ++u) schedule.append({int(u), depth_of(plan, u)});

  const bool reshards(options.reshard_after_forward);
  const GroupSizes groups = options.group_sizes(step.ranks);
  PlannedUnits planned(units, root, groups, options.max_gathered);
  ForwardWalk forward(units.size());
  BackwardWalk backward;
  planned.gather_root();
  for (int64_t micro_batch = 0; micro_batch < step.micro_batches; ++micro_batch) {
    const bool reduces = options.reduce == Reduce::every_micro_batch || micro_batch + 1 == step.micro_batches;
    forward.begin(schedule, reshards, options.prefetch, planned);
    for (std::size_t u = 0; u < units.size(); ++u) forward.reach(planned, int(u));
    if (!units.empty()) planned.count(Collective::all_gather, step.ranks * int64_t(sizeof(double)), step.ranks);
    backward.begin(schedule, reshards, options.prefetch, reduces, false);
    backward.to_end(planned);
    if (reduces) planned.reduce_root();
    if (reduces || reshards) planned.release_all();
    forward.forget();
  }
  const int replicas = step.ranks / groups.shard;
  std::map<torch::ScalarType, int64_t> mains;  // elements on each rank
  for (const auto& segment : plan.segments) mains[segment.stored] += segment.layout.part_size();
  for (const auto& [stored, elements] : mains)
    planned.count(Collective::all_reduce,
                  (elements + replicas - 1) / replicas * replicas * int64_t(c10::elementSize(main_dtype_of(stored))),
                  replicas);
  return {planned.counts(), planned.most_gathered()};
}

}  // namespace dovetail::detail
