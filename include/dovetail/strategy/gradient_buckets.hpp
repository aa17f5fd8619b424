// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/gradient_bucket.hpp>
#include <dovetail/shard/gradient_hooks.hpp>
#include <dovetail/strategy/bucket_plan.hpp>

#include <algorithm>
#include <memory>
#include <vector>

namespace dovetail {

/// The gradients of a run in flat buckets, in backward order. Each is reduced while backward computes the next ones.
/// Not to be moved once it is attached.
class GradientBuckets {
 public:
  /// The next bucket.
  /// @param gradient  of plan.layout.size() elements
  /// @param main      this rank's part of the sum; may be part of `gradient` unless that is freed
  void add(const RunContext& run, const BucketPlan& plan, const torch::Tensor& gradient, const torch::Tensor& main,
           Reduction reduction) {
    std::vector<torch::Tensor> models;
    for (const std::size_t i : plan.slots) models.push_back(run.gradients.slots[i].model);
    StorageGate gate(gradient, "a gradient was read after it was sent to its owner.", memory_);
    GradientWire wire(gradient, run.world_size() > 1 ? plan.reduced : gradient.scalar_type(), memory_);
    GradientBuffer buffer(models, plan.layout, std::move(gate),
                          "the parameters '" + run.gradients.slots[plan.slots[0]].name + "', ...", std::move(wire));
    buckets_.push_back({plan.slots, GradientBucket(std::move(buffer), main, reduction)});
  }

  /// Takes gradients from autograd as they come.
  void attach(RunContext& run) {
    comm_ = run.comm;
    for (std::size_t b = 0; b < buckets_.size(); ++b)
      for (std::size_t i = 0; i < buckets_[b].slots.size(); ++i) {
        Slot& slot = run.gradients.slots[buckets_[b].slots[i]];
        hooks_.add(slot.model, [this, b, i, &slot, &run](const torch::Tensor& gradient) {
          if (run.in_training_step) refuse_touched(slot);
          buckets_[b].gradients.take(i, gradient);
          slot.taken = true;
          reduce_complete_ones();
        });
      }
  }
  void detach() { hooks_.clear(); }

  /// @param each  gradients are reduced after every micro-batch, and the sums added up; else the other way round
  void before_backward(RunContext& run, bool each) {
    finish();  // of a backward that ended by an exception
    reduces_ = each || run.at_boundary();
    adds_ = each && run.micro_batch > 0;
    next_ = 0;
    for (Bucket& bucket : buckets_) {
      const auto trains = [&](std::size_t slot) { return run.gradients.slots[slot].model.requires_grad(); };
      const auto expected = std::count_if(bucket.slots.begin(), bucket.slots.end(), trains);
      bucket.gradients.begin(each || run.micro_batch == 0, std::size_t(expected));
    }
  }

  /// Buckets that some parameter left incomplete.
  void after_backward() {
    while (reduces_ && next_ < buckets_.size()) start_next();
    if (reduces_) return;
    for (Bucket& bucket : buckets_) bucket.gradients.fill();
  }

  /// Waits for all sums.
  void finish() {
    for (Bucket& bucket : buckets_) bucket.gradients.finish_reduce(comm_);
    for (Bucket& bucket : buckets_) bucket.gradients.finish(comm_);
  }

 private:
  struct Bucket {
    std::vector<std::size_t> slots;
    GradientBucket gradients;
  };

  /// All ranks start with the same bucket and go on in the same order, whenever their gradients arrive.
  void reduce_complete_ones() {
    while (reduces_ && next_ < buckets_.size() && buckets_[next_].gradients.complete()) start_next();
  }

  void start_next() {
    constexpr std::size_t under_way = 2;
    if (next_ >= under_way) buckets_[next_ - under_way].gradients.finish_reduce(comm_);
    buckets_[next_++].gradients.start_reduce(comm_, adds_);
  }

  std::shared_ptr<MemoryPool> memory_ = std::make_shared<MemoryPool>();
  std::vector<Bucket> buckets_;
  GradientHooks hooks_;

  Communicator comm_;
  bool reduces_ = false, adds_ = false;  // in this backward
  std::size_t next_ = 0;                 // bucket that is reduced next
};

}  // namespace dovetail
