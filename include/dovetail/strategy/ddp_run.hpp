// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/bind.hpp>
#include <dovetail/run/dense.hpp>
#include <dovetail/strategy/bucket_reducer.hpp>
#include <dovetail/strategy/ddp.hpp>
#include <dovetail/strategy/ddp_traffic.hpp>

namespace dovetail {

/// DDP in one run: every rank holds the whole model, gradients are summed over ranks at the end of each window.
///
/// c10d::Reducer does it in buckets, while backward still computes, where the gradients that autograd makes are the
/// main ones (fp32 and fp64). Everything else reduces its own flat home: low formats, whose main gradients are fp32,
/// and `deterministic`, which sums in rank order.
class DDPRun : public StrategyBase {
 public:
  explicit DDPRun(const DDP& policy) : options_(policy.options) {}

  void environment(StrategyContext&) {
    if (options_.bucket_mb < 1) throw Error(ExitCode::arguments, "DDP's bucket_mb must be at least 1.");
    if (options_.first_bucket_mb < 1) throw Error(ExitCode::arguments, "DDP's first_bucket_mb must be at least 1.");
  }

  StepTraffic traffic(const StepShape& step) const { return detail::ddp_traffic(options_, step); }

  void attach_gradients(StrategyContext& run) {
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
    if (reducer_) reducer_->before_backward(run);
  }
  void after_backward(StrategyContext& run) {
    if (reducer_) reducer_->after_backward(run);
  }

  void reduce(StrategyContext& run) {
    if (reducer_)
      reducer_->finish_window(run);
    else
      run.sum_gradients();
  }

  void teardown(StrategyContext&) { reducer_.reset(); }

 private:
  DDP::Options options_;
  std::optional<BucketReducer> reducer_;
};

template <>
struct RunOf<DDP> {
  using type = DDPRun;
};

}  // namespace dovetail
