// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/gradient_bucket.hpp>
#include <dovetail/shard/gradient_hooks.hpp>
#include <dovetail/strategy/sharded.hpp>
#include <dovetail/strategy/sharded_plan.hpp>
#include <dovetail/strategy/step_traffic.hpp>

#include <algorithm>

namespace dovetail {

/// ZeRO-1 and ZeRO-2 in one run: every rank holds the whole model and steps its part of it.
///
/// Parameters lie in flat buckets, in backward order, each cut into one part for each rank. Gradients are
/// reduce-scattered to their owners, bucket by bucket while backward computes the next one: at level 1 once per window,
/// at level 2 every micro-batch, after which the bucket's memory is freed. After the step all-gathers bring the updated
/// parts back. Element-wise optimizers see pieces of tensors; for others there is one bucket, whose parts end at
/// borders of tensors.
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
    for (const ShardedBucket& bucket : plan_sharded(slots, step.cut, bucket_mb_, reduce_format_, step.ranks)) {
      const auto bytes = [&](torch::ScalarType dtype) {
        return bucket.layout.size() * int64_t(c10::elementSize(dtype));
      };
      for (int64_t i = 0; i < (each ? step.micro_batches * step.passes : 1); ++i)
        sent.counts.plan(Collective::reduce_scatter, bytes(bucket.reduced), step.ranks);
      sent.counts.plan(Collective::all_gather, bytes(slots[bucket.slots.front()].model.scalar_type()), step.ranks);
    }
    return sent;
  }

  /// Optimizers exist over whole parameters: their groups are edited to hold this rank's pieces instead.
  void rebuild_optimizers(StrategyContext& run) {
    Cut cut = Cut::inside_tensors;
    for (std::size_t k = 0; k < run.optimizers.size(); ++k)
      if (!run.optimizers[k].traits().elementwise) cut = Cut::at_borders;

    Exchanges pieces;
    for (const ShardedBucket& bucket :
         plan_sharded(run.gradients.slots, cut, bucket_mb_, reduce_format_, run.world_size()))
      add_bucket(run, bucket, cut, pieces);
    for (OptimizerEntry& optimizer : run.optimizers) optimizer.exchange(pieces);
    run.gradients.shard_group = run.world_size();
  }

  void attach_gradients(StrategyContext& run) {
    for (std::size_t b = 0; b < buckets_.size(); ++b)
      for (std::size_t i = 0; i < buckets_[b].slots.size(); ++i) {
        const std::size_t slot = buckets_[b].slots[i];
        hooks_.add(run.gradients.slots[slot].model,
                   [this, b, i, &slot = run.gradients.slots[slot]](const auto& gradient) {
                     buckets_[b].gradients.take(i, gradient);
                     slot.taken = true;
                     reduce_complete_ones();
                   });
      }
  }

  void before_backward(StrategyContext& run) {
    finish_all();  // of a backward that ended by an exception
    comm_ = run.comm;
    reduces_ = scatters_each(run) || run.at_boundary();
    adds_ = scatters_each(run) && run.micro_batch > 0;
    next_ = 0;
    for (Bucket& bucket : buckets_) {
      const auto trains = [&](std::size_t slot) { return run.gradients.slots[slot].model.requires_grad(); };
      const auto expected = std::count_if(bucket.slots.begin(), bucket.slots.end(), trains);
      bucket.gradients.begin(scatters_each(run) || run.micro_batch == 0, std::size_t(expected));
    }
  }

  /// Buckets that some parameter left incomplete.
  void after_backward(StrategyContext&) {
    while (reduces_ && next_ < buckets_.size()) start_next();
  }

  void reduce(StrategyContext& run) {
    finish_all();
    run.gradients.summed = true;
  }

  void after_step(StrategyContext& run) {
    std::vector<Pending> gathers;
    for (Bucket& bucket : buckets_) gathers.push_back(run.comm.all_gather_into_async(bucket.data, bucket.data_part));
    for (Pending& gather : gathers) gather.wait();
  }

  void teardown(StrategyContext&) { hooks_.clear(); }

 private:
  struct Bucket {
    std::vector<std::size_t> slots;
    torch::Tensor data, data_part;  // parameters, this rank's part of them
    GradientBucket gradients;
  };

  bool frees(const StrategyContext& run) const { return level_ == 2 && run.world_size() > 1; }
  bool scatters_each(const StrategyContext& run) const { return frees(run) && reduce_ == Reduce::every_micro_batch; }

  /// All ranks start with the same bucket and go on in the same order, whenever their gradients arrive.
  void reduce_complete_ones() {
    while (reduces_ && next_ < buckets_.size() && buckets_[next_].gradients.complete()) start_next();
  }

  void start_next() {
    constexpr std::size_t under_way = 2;
    if (next_ >= under_way) buckets_[next_ - under_way].gradients.finish_reduce();
    buckets_[next_++].gradients.start_reduce(comm_, adds_);
  }

  void finish_all() {
    for (Bucket& bucket : buckets_) bucket.gradients.finish_reduce();
  }

  void add_bucket(StrategyContext& run, const ShardedBucket& plan, Cut cut, Exchanges& pieces) {
    const auto& [slots, reduced, layout] = plan;
    std::vector<torch::Tensor> models;
    for (const std::size_t i : slots) models.push_back(run.gradients.slots[i].model);
    const auto options = models.front().options().requires_grad(false);
    const auto main_options = options.dtype(main_dtype_of(models.front().scalar_type()));
    const int64_t part_begin = run.rank() * layout.part_size();

    const torch::Tensor data = torch::zeros({layout.size()}, options);
    const torch::Tensor data_part = data.narrow(0, part_begin, layout.part_size());
    const torch::Tensor gradient = torch::zeros({layout.size()}, main_options);
    const torch::Tensor main = frees(run) ? torch::zeros({layout.part_size()}, main_options)
                                          : gradient.narrow(0, part_begin, layout.part_size());
    move_into(data, layout, models);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      Slot& slot = run.gradients.slots[slots[i]];
      const torch::Tensor whole_held = slot.held;
      hold_piece(slot, layout.piece(i, run.rank()), cut, data_part, main);
      pieces.emplace(whole_held.unsafeGetTensorImpl(), Parameter{slot.name, slot.shape, slot.held});
    }
    StorageGate gate(gradient, "a gradient was read after it was sent to its owner.", memory_);
    GradientWire wire(gradient, run.world_size() > 1 ? reduced : gradient.scalar_type(), memory_);
    GradientBuffer buffer(models, layout, std::move(gate),
                          "the parameters '" + run.gradients.slots[slots[0]].name + "', ...", std::move(wire));
    buckets_.push_back({slots, data, data_part, GradientBucket(std::move(buffer), main, frees(run))});
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
  std::shared_ptr<MemoryPool> memory_ = std::make_shared<MemoryPool>();
  std::vector<Bucket> buckets_;
  GradientHooks hooks_;

  Communicator comm_;
  bool reduces_ = false, adds_ = false;  // in this backward
  std::size_t next_ = 0;                 // bucket that is reduced next
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
