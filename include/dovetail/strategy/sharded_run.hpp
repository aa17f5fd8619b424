// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/strategy/gradient_buckets.hpp>
#include <dovetail/strategy/sharded.hpp>
#include <dovetail/strategy/step_traffic.hpp>

#include <utility>
#include <vector>

namespace dovetail {

/// ZeRO-1 and ZeRO-2 in one run: every rank holds the whole model and steps its part of it.
///
/// Parameters lie in flat buckets, in backward order, each cut into one part for each rank. Gradients are
/// reduce-scattered to their owners, bucket by bucket while backward computes the next one: at level 1 once per window,
/// at level 2 every micro-batch, after which the bucket's memory is freed. After the step all-gathers bring the updated
/// parts back. Element-wise optimizers see pieces of tensors; for others there is one bucket for each dtype, whose
/// parts end at borders of tensors.
class ShardedRun : public StrategyBase {
 public:
  ShardedRun(int level, int bucket_mb, Reduce reduce, std::optional<Format> reduce_format)
      : level_(level), bucket_mb_(bucket_mb), reduce_(reduce), reduce_format_(reduce_format) {}

  void environment(StrategyContext&) {
    if (bucket_mb_ < 1) throw Error(ExitCode::arguments, "Sharded's bucket_mb must be at least 1.");
  }

  StepTraffic traffic(const StepShape& step) const {
    const auto slots = slots_of(step.model);
    const bool each = level_ == 2 && reduce_ == Reduce::every_micro_batch;
    StepTraffic sent;
    for (const BucketPlan& bucket :
         plan_buckets(slots, step.ranks, {bucket_mb_, bucket_mb_}, reduce_format_, "Sharded", step.cut)) {
      for (int64_t i = 0; i < (each ? step.micro_batches * step.passes : 1); ++i)
        sent.counts.plan(Collective::reduce_scatter, bucket.bytes(bucket.reduced), step.ranks);
      sent.counts.plan(Collective::all_gather, bucket.bytes(slots[bucket.slots.front()].model.scalar_type()),
                       step.ranks);
    }
    return sent;
  }

  /// Optimizers exist over whole parameters: their groups are edited to hold this rank's pieces instead.
  void rebuild_optimizers(StrategyContext& run) {
    Cut cut = Cut::inside_tensors;
    for (std::size_t k = 0; k < run.optimizers.size(); ++k)
      if (!run.optimizers[k].traits().elementwise) cut = Cut::at_borders;

    Exchanges pieces;
    for (const BucketPlan& plan :
         plan_buckets(run.gradients.slots, run.world_size(), {bucket_mb_, bucket_mb_}, reduce_format_, "Sharded", cut))
      add_bucket(run, plan, cut, pieces);
    for (OptimizerEntry& optimizer : run.optimizers) optimizer.exchange(pieces);
    run.gradients.shard_group = run.world_size();
  }

  void attach_gradients(StrategyContext& run) { gradients_.attach(run); }
  void before_backward(StrategyContext& run) { gradients_.before_backward(run, scatters_each(run)); }
  void after_backward(StrategyContext&) { gradients_.after_backward(); }

  void reduce(StrategyContext& run) {
    gradients_.finish();
    run.gradients.summed = true;
  }

  void after_step(StrategyContext& run) {
    std::vector<Pending> gathers;
    for (const auto& [whole, part] : data_) gathers.push_back(run.comm.all_gather_into_async(whole, part));
    for (Pending& gather : gathers) gather.wait();
  }

  void teardown(StrategyContext&) { gradients_.detach(); }

 private:
  bool frees(const StrategyContext& run) const { return level_ == 2 && run.world_size() > 1; }
  bool scatters_each(const StrategyContext& run) const { return frees(run) && reduce_ == Reduce::every_micro_batch; }

  void add_bucket(StrategyContext& run, const BucketPlan& plan, Cut cut, Exchanges& pieces) {
    const FlatLayout& layout = plan.layout;
    std::vector<torch::Tensor> models;
    for (const std::size_t i : plan.slots) models.push_back(run.gradients.slots[i].model);
    const auto options = models.front().options().requires_grad(false);
    const auto main_options = options.dtype(main_dtype_of(models.front().scalar_type()));
    const int64_t part_begin = run.rank() * layout.part_size();

    const torch::Tensor data = torch::zeros({layout.size()}, options);
    const torch::Tensor data_part = data.narrow(0, part_begin, layout.part_size());
    const torch::Tensor gradient = torch::zeros({layout.size()}, main_options);
    const torch::Tensor main = frees(run) ? torch::zeros({layout.part_size()}, main_options)
                                          : gradient.narrow(0, part_begin, layout.part_size());
    move_into(data, layout, models);
    for (std::size_t i = 0; i < plan.slots.size(); ++i) {
      Slot& slot = run.gradients.slots[plan.slots[i]];
      const torch::Tensor whole_held = slot.held;
      hold_piece(slot, layout.piece(i, run.rank()), cut, data_part, main);
      pieces.emplace(whole_held.unsafeGetTensorImpl(), Parameter{slot.name, slot.shape, slot.held});
    }
    data_.emplace_back(data, data_part);
    gradients_.add(run, plan, gradient, main, frees(run) ? Reduction::to_owners_and_free : Reduction::to_owners);
  }

  static void hold_piece(Slot& slot, const Piece& piece, Cut cut, const torch::Tensor& data_part,
                         const torch::Tensor& main) {
    const torch::Tensor data = data_part.narrow(0, piece.offset, piece.numel);
    slot.main = main.narrow(0, piece.offset, piece.numel);
    slot.piece_begin = piece.begin;
    if (cut == Cut::at_borders && piece.numel > 0) {  // a whole tensor keeps its shape
      slot.piece_begin = -1;
      slot.held = alias_like(data, 0, slot.model).requires_grad_(true);
      slot.main = view_like(slot.main, 0, slot.model);
    } else {
      slot.held = data.variable_data().requires_grad_(true);
    }
    slot.stepped = slot.held;
    slot.arrivals = torch::Tensor();
  }

  int level_, bucket_mb_;
  Reduce reduce_;
  std::optional<Format> reduce_format_;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> data_;  // of each bucket: parameters, this rank's part of them
  GradientBuckets gradients_;
};

namespace detail {

template <int level>
struct ShardedRunOf : ShardedRun {
  explicit ShardedRunOf(const Sharded<level>& policy)
      : ShardedRun(level, policy.options.bucket_mb, reduce_of(policy.options), policy.options.reduce_format) {}

 private:
  static Reduce reduce_of(const ShardedOptions<1>&) { return Reduce::at_boundary; }
  static Reduce reduce_of(const ShardedOptions<2>& options) { return options.reduce; }
};

}  // namespace detail

template <int level>
struct RunOf<Sharded<level>> {
  using type = detail::ShardedRunOf<level>;
};

}  // namespace dovetail
