// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/agreed_numbers.hpp>
#include <dovetail/shard/backward_walk.hpp>
#include <dovetail/shard/forward_walk.hpp>
#include <dovetail/shard/planned_units.hpp>
#include <dovetail/strategy/bucket_plan.hpp>
#include <dovetail/strategy/ddp.hpp>
#include <dovetail/strategy/fsdp_plan.hpp>
#include <dovetail/strategy/sharded.hpp>
#include <dovetail/strategy/single_device.hpp>
#include <dovetail/strategy/step_traffic.hpp>

#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace dovetail {

namespace detail {

inline int64_t bytes_of(const FlatLayout& layout, torch::ScalarType dtype) {
  return layout.size() * int64_t(c10::elementSize(dtype));
}

/// How many others a unit is inside of.
inline int depth_of(const FSDPPlan& plan, std::size_t unit) {
  return int(std::count_if(plan.units.begin(), plan.units.end(), [&](const FSDPPlan::Unit& other) {
    const bool is_root = other.name.empty();  // the model itself is a unit
    return &other != &plan.units[unit] && (is_root || plan.units[unit].name.starts_with(other.name + "."));
  }));
}

inline void add_agreement(PlannedUnits& planned, const StepShape& shape) {
  const int64_t numbers = shape.agrees ? agreed_numbers + shape.norms : 0;
  planned.count(Collective::all_gather, shape.ranks * numbers * int64_t(sizeof(double)));
}

}  // namespace detail

/// What a step will send, from the model as it is when training begins (cast, where the precision casts it) and the
/// options, before anything is cut. For FSDP it is a step whose forward calls each unit once, in the order of
/// registration; the first step of a run agrees on that order and sends a little more. For DDP it is a step after the
/// first, which settles the buckets, in a backward that reaches parameters in the reverse of that order.
inline StepTraffic predict(torch::nn::Module& model, const FSDP& policy, const PrecisionTraits& precision,
                           const StepShape& shape) {
  const FSDPPlan plan = plan_fsdp(model, slots_of(model), policy.options, precision, shape.ranks);
  std::vector<std::vector<PlannedUnits::Segment>> units(plan.units.size());
  std::vector<PlannedUnits::Segment> root;
  for (const auto& segment : plan.segments)
    (segment.unit == UnitTree::root ? root : units[std::size_t(segment.unit)])
        .push_back(
            {detail::bytes_of(segment.layout, segment.gathered), detail::bytes_of(segment.layout, segment.reduced)});
  UnitSchedule schedule;
  for (std::size_t u = 0; u < units.size(); ++u) schedule.append({int(u), detail::depth_of(plan, u)});

  const bool reshards(policy.options.reshard_after_forward);
  const bool at_end = policy.options.reduce == Reduce::at_boundary;
  const int copy = policy.options.ranks_per_copy(shape.ranks),
            slices = policy.options.reshard_after_forward.slices().value_or(copy);
  PlannedUnits planned(units, root, {shape.ranks, copy, slices < copy ? slices : 1}, policy.options.max_gathered);
  ForwardWalk forward(units.size());
  BackwardWalk backward;
  planned.gather_root();
  for (int64_t micro_batch = 0; micro_batch < shape.micro_batches; ++micro_batch) {
    const bool reduces = !at_end || micro_batch + 1 == shape.micro_batches;
    forward.begin(schedule, reshards, policy.options.prefetch, planned);
    for (std::size_t u = 0; u < units.size(); ++u) forward.reach(planned, int(u));
    if (!units.empty()) planned.count(Collective::all_gather, shape.ranks * int64_t(sizeof(double)));
    backward.begin(schedule, reshards, policy.options.prefetch, reduces, false);
    backward.to_end(planned);
    if (reduces) planned.reduce_root();
    if (reduces || reshards) planned.release_all();
    forward.forget();
  }
  const int copies = shape.ranks / copy;
  std::map<torch::ScalarType, int64_t> mains;  // elements on each rank
  for (const auto& segment : plan.segments) mains[segment.stored] += segment.layout.part_size();
  for (const auto& [stored, elements] : mains)
    planned.count(Collective::all_reduce,
                  (elements + copies - 1) / copies * copies * int64_t(c10::elementSize(main_dtype_of(stored))), copies);
  detail::add_agreement(planned, shape);
  return {planned.counts(), planned.most_gathered()};
}

template <int level>
StepTraffic predict(torch::nn::Module& model, const Sharded<level>& policy, const PrecisionTraits&,
                    const StepShape& shape) {
  const auto slots = slots_of(model);
  int64_t reductions = 1;
  if constexpr (level == 2)
    if (policy.options.reduce == Reduce::every_micro_batch) reductions = shape.micro_batches;
  PlannedUnits planned({}, {}, {shape.ranks});
  const int size = policy.options.bucket_mb;
  for (const auto& bucket :
       plan_buckets(slots, shape.ranks, {size, size}, policy.options.reduce_format, "Sharded", shape.cut)) {
    const auto dtype = slots[bucket.slots.front()].model.scalar_type();
    for (int64_t i = 0; i < reductions; ++i)
      planned.count(Collective::reduce_scatter, detail::bytes_of(bucket.layout, bucket.reduced));
    planned.count(Collective::all_gather, detail::bytes_of(bucket.layout, dtype));
  }
  detail::add_agreement(planned, shape);
  return {planned.counts(), 0};
}

inline StepTraffic predict(torch::nn::Module& model, const DDP& policy, const PrecisionTraits&,
                           const StepShape& shape) {
  PlannedUnits planned({}, {}, {shape.ranks});
  const auto slots = slots_of(model);
  std::vector<torch::Tensor> tensors;
  std::map<torch::ScalarType, int64_t> homes;  // elements, where the flat home itself is reduced
  bool low = false;
  for (const Slot& slot : slots) {
    tensors.insert(tensors.begin(), slot.model);
    homes[slot.model.scalar_type()] += slot.model.numel();
    low |= main_dtype_of(slot.model.scalar_type()) != slot.model.scalar_type();
  }
  if (policy.options.reduce_format) {
    for (const auto& bucket :
         plan_buckets(slots, shape.ranks, {policy.options.first_bucket_mb, policy.options.bucket_mb},
                      policy.options.reduce_format, "DDP")) {
      const auto main = main_dtype_of(slots[bucket.slots.front()].model.scalar_type());
      planned.count(Collective::reduce_scatter, detail::bytes_of(bucket.layout, bucket.reduced));
      planned.count(Collective::all_gather, detail::bytes_of(bucket.layout, main));
    }
  } else if (low || shape.deterministic) {
    for (const auto& [dtype, elements] : homes) {
      const int64_t padded = (elements + shape.ranks - 1) / shape.ranks * shape.ranks;
      planned.count(Collective::all_reduce,
                    (shape.deterministic ? padded : elements) * int64_t(c10::elementSize(main_dtype_of(dtype))));
    }
  } else if (!tensors.empty()) {
    const std::vector<size_t> limits{size_t(policy.options.first_bucket_mb) << 20, size_t(policy.options.bucket_mb)
                                                                                       << 20};
    const auto [buckets, sizes] = c10d::compute_bucket_assignment_by_size(tensors, limits);
    for (const auto& bucket : buckets) {
      int64_t bytes = 0;
      for (const size_t i : bucket) bytes += int64_t(tensors[i].nbytes());
      planned.count(Collective::all_reduce, bytes);
    }
  }
  detail::add_agreement(planned, shape);
  return {planned.counts(), 0};
}

inline StepTraffic predict(torch::nn::Module&, const SingleDevice&, const PrecisionTraits&, const StepShape&) {
  return {};
}

}  // namespace dovetail
