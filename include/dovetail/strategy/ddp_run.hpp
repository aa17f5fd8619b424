// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/dense.hpp>
#include <dovetail/strategy/ddp.hpp>
#include <dovetail/strategy/gradient_buckets.hpp>
#include <dovetail/strategy/step_traffic.hpp>

#include <vector>

namespace dovetail {

/// DDP in one run: every rank holds the whole model. Gradients are summed over ranks in buckets, in the last backward
/// of a window while it still computes.
///
/// c10d::Reducer does the same for gradients in the parameters' own format. Our buckets serve every pair: they take
/// gradients of any format, reduce in rank order or in another format where that is asked for, and send zeros for
/// parameters that got no gradient.
class DDPRun : public StrategyBase {
 public:
  explicit DDPRun(const DDP& policy) : options_(policy.options) {}

  void environment(StrategyContext&) {
    if (options_.bucket_mb < 1) throw Error(ExitCode::arguments, "DDP's bucket_mb must be at least 1.");
    if (options_.first_bucket_mb < 1) throw Error(ExitCode::arguments, "DDP's first_bucket_mb must be at least 1.");
  }

  StepTraffic traffic(const StepShape& step) const {
    const auto slots = slots_of(step.model);
    StepTraffic sent;
    for (const BucketPlan& bucket : plan(slots, step.ranks)) {
      const int64_t sums = bucket.bytes(main_dtype_of(slots[bucket.slots.front()].model.scalar_type()));
      if (reduction(step.deterministic) == Reduction::to_all) {
        sent.counts.plan(Collective::all_reduce, sums, step.ranks);
      } else {
        sent.counts.plan(Collective::reduce_scatter, bucket.bytes(bucket.reduced), step.ranks);
        sent.counts.plan(Collective::all_gather, sums, step.ranks);
      }
    }
    return sent;
  }

  void attach_gradients(StrategyContext& run) {
    const std::vector<BucketPlan> buckets = plan(run.gradients.slots, run.world_size());
    if (run.world_size() == 1) return attach_dense_gradients(run);
    for (const BucketPlan& bucket : buckets) {
      std::vector<Slot*> slots;
      for (const std::size_t i : bucket.slots) slots.push_back(&run.gradients.slots[i]);
      const torch::Tensor gradient = detail::lay_out(slots, bucket.layout);
      const int64_t part = bucket.layout.part_size();
      buckets_.add(run, bucket, gradient, gradient.narrow(0, run.rank() * part, part),
                   reduction(run.options.deterministic));
    }
    buckets_.attach(run);
  }

  void before_backward(StrategyContext& run) {
    if (run.world_size() == 1) return;
    for (Slot& slot : run.gradients.slots) slot.model.mutable_grad().reset();  // or autograd would add to it
    buckets_.before_backward(run, false);
  }
  void after_backward(StrategyContext&) { buckets_.after_backward(); }

  void reduce(StrategyContext& run) {
    if (run.world_size() == 1) return run.sum_gradients();
    buckets_.finish();
    for (Slot& slot : run.gradients.slots)
      if (slot.stepped.is_same(slot.model)) slot.model.mutable_grad() = slot.main;
    run.gradients.summed = true;
  }

  void teardown(StrategyContext&) { buckets_.detach(); }

 private:
  std::vector<BucketPlan> plan(const std::vector<Slot>& slots, int ranks) const {
    return plan_buckets(slots, ranks, {options_.first_bucket_mb, options_.bucket_mb}, options_.reduce_format, "DDP");
  }

  Reduction reduction(bool deterministic) const {
    return deterministic || options_.reduce_format ? Reduction::to_all_in_rank_order : Reduction::to_all;
  }

  DDP::Options options_;
  GradientBuckets buckets_;
};

template <>
struct RunOf<DDP> {
  using type = DDPRun;
};

}  // namespace dovetail
