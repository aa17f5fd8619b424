// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/bind.hpp>
#include <dovetail/run/dense.hpp>
#include <dovetail/strategy/bucket_reducer.hpp>
#include <dovetail/strategy/ddp.hpp>
#include <dovetail/strategy/ddp_traffic.hpp>
#include <dovetail/strategy/gradient_buckets.hpp>

namespace dovetail {

/// DDP in one run: every rank holds the whole model, gradients are summed over ranks at the end of each window.
///
/// c10d::Reducer does it in buckets, while backward still computes, where the gradients that autograd makes are the
/// main ones (fp32 and fp64). Everything else reduces its own flat home: low formats, whose main gradients are fp32,
/// and `deterministic`, which sums in rank order. With a `reduce_format` our own buckets do it, as Sharded<1>'s, whose
/// sums are gathered: they take gradients of any format, and start their collectives in one order on all ranks by
/// themselves, where two after each other in a hook of the Reducer would have to wait inside of backward.
class DDPRun : public StrategyBase {
 public:
  explicit DDPRun(const DDP& policy) : options_(policy.options) {}

  void environment(StrategyContext&) {
    if (options_.bucket_mb < 1) throw Error(ExitCode::arguments, "DDP's bucket_mb must be at least 1.");
    if (options_.first_bucket_mb < 1) throw Error(ExitCode::arguments, "DDP's first_bucket_mb must be at least 1.");
  }

  StepTraffic traffic(const StepShape& step) const { return detail::ddp_traffic(options_, step); }

  void attach_gradients(StrategyContext& run) {
    if (options_.reduce_format) {
      const auto plan = plan_buckets(run.gradients.slots, run.world_size(),
                                     {options_.first_bucket_mb, options_.bucket_mb}, options_.reduce_format, "DDP");
      if (run.world_size() > 1) return attach_buckets(run, plan);
    }
    bool low = false;
    for (const Slot& slot : run.gradients.slots)
      low |= main_dtype_of(slot.model.scalar_type()) != slot.model.scalar_type();
    if (run.world_size() == 1 || run.options.deterministic || low || run.gradients.slots.empty())
      attach_dense_gradients(run);
    else
      reducer_.emplace(run, options_.first_bucket_mb, options_.bucket_mb);
  }

  void before_forward(StrategyContext& run) {
    if (reducer_) reducer_->before_forward(run);
  }
  void before_backward(StrategyContext& run) {
    if (reducer_) return reducer_->before_backward(run);
    for (Slot* slot : bucketed_) slot->model.mutable_grad().reset();  // or autograd would add to what was stepped with
    buckets_.before_backward(run, false);
  }
  void after_backward(StrategyContext& run) {
    if (reducer_) return reducer_->after_backward(run);
    buckets_.after_backward();
  }

  void reduce(StrategyContext& run) {
    if (reducer_) return reducer_->finish_window(run);
    buckets_.finish();
    for (Slot* slot : bucketed_)
      if (slot->stepped.is_same(slot->model)) slot->model.mutable_grad() = slot->main;
    run.sum_gradients();  // of what lies in no bucket
  }

  void teardown(StrategyContext&) {
    reducer_.reset();
    buckets_.detach();
  }

 private:
  void attach_buckets(StrategyContext& run, const std::vector<BucketPlan>& plan) {
    for (const BucketPlan& bucket : plan) {
      std::vector<Slot*> slots;
      for (const std::size_t i : bucket.slots) slots.push_back(&run.gradients.slots[i]);
      const torch::Tensor gradient = detail::lay_out(slots, bucket.layout);
      const int64_t part = bucket.layout.part_size();
      buckets_.add(run, bucket, gradient, gradient.narrow(0, run.rank() * part, part), WholeGradients::summed);
      bucketed_.insert(bucketed_.end(), slots.begin(), slots.end());
    }
    buckets_.attach(run);
  }

  DDP::Options options_;
  std::optional<BucketReducer> reducer_;
  GradientBuckets buckets_;
  std::vector<Slot*> bucketed_;  // whose gradients lie in buckets_
};

template <>
struct RunOf<DDP> {
  using type = DDPRun;
};

}  // namespace dovetail
