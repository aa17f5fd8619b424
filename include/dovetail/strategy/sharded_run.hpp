// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/optim/exchange.hpp>
#include <dovetail/run/dense.hpp>
#include <dovetail/shard/storage_gate.hpp>
#include <dovetail/strategy/sharded.hpp>

#include <map>
#include <unordered_map>

namespace dovetail {

/// ZeRO-1 and ZeRO-2 in one run: every rank holds the whole model and steps its part of it.
///
/// Parameters lie in one flat buffer per dtype, in backward order, cut into one part for each rank. Gradients are
/// reduce-scattered to their owners: at level 1 once per window, at level 2 every micro-batch, after which the full
/// gradient is freed. After the step an all-gather brings the updated parts back. Element-wise optimizers see pieces of
/// tensors; for others parts end at borders of tensors.
class ShardedRun : public StrategyBase {
 public:
  explicit ShardedRun(int level) : frees_gradients_(level == 2) {}

  /// Optimizers exist over whole parameters: their groups are edited to hold this rank's pieces instead.
  void rebuild_optimizers(StrategyContext& run) {
    Cut cut = Cut::inside_tensors;
    for (std::size_t k = 0; k < run.optimizers.size(); ++k)
      if (!run.optimizers[k].traits().elementwise) cut = Cut::at_borders;

    std::map<torch::ScalarType, std::vector<Slot*>> by_dtype;
    for (auto slot = run.gradients.slots.rbegin(); slot != run.gradients.slots.rend(); ++slot)
      by_dtype[slot->model.scalar_type()].push_back(&*slot);
    std::unordered_map<c10::TensorImpl*, torch::Tensor> pieces;
    for (auto& [dtype, slots] : by_dtype) add_buffers(run, slots, cut, pieces);
    for (std::size_t k = 0; k < run.optimizers.size(); ++k)
      for (auto& group : run.optimizers[k].base().param_groups())
        for (torch::Tensor& tensor : group.params())
          if (const auto found = pieces.find(tensor.unsafeGetTensorImpl()); found != pieces.end())
            exchange(run.optimizers[k].base(), tensor, found->second);
    run.gradients.parts = run.world_size() > 1;
  }

  void attach_gradients(StrategyContext&) {}

  void before_backward(StrategyContext& run) {
    if (!frees(run)) return;
    for (Buffers& buffers : buffers_) {
      buffers.gradient.open();
      buffers.gradient.buffer().zero_();
    }
  }

  void after_backward(StrategyContext& run) {
    if (!frees(run)) return;
    for (Buffers& buffers : buffers_) {
      if (run.micro_batch == 0) {
        run.comm.reduce_scatter(buffers.main, buffers.gradient.buffer());
      } else {
        const torch::Tensor more = torch::empty_like(buffers.main);
        run.comm.reduce_scatter(more, buffers.gradient.buffer());
        buffers.main.add_(more);
      }
      buffers.gradient.close();
    }
  }

  void reduce(StrategyContext& run) {
    if (run.world_size() > 1 && !frees_gradients_)
      for (Buffers& buffers : buffers_) run.comm.reduce_scatter(buffers.main, buffers.gradient.buffer());
    run.gradients.summed = true;
  }

  void after_step(StrategyContext& run) {
    for (Buffers& buffers : buffers_)
      if (run.world_size() > 1) run.comm.all_gather_into(buffers.data, buffers.data_part);
  }

 private:
  struct Buffers {
    torch::Tensor data, data_part;  // all parameters, this rank's part of them
    StorageGate gradient;           // all gradients, summed over this rank's micro-batches
    torch::Tensor main;             // this rank's part, summed over ranks
  };

  bool frees(const StrategyContext& run) const { return frees_gradients_ && run.world_size() > 1; }

  void add_buffers(StrategyContext& run, const std::vector<Slot*>& slots, Cut cut,
                   std::unordered_map<c10::TensorImpl*, torch::Tensor>& pieces) {
    std::vector<torch::Tensor> models;
    for (const Slot* slot : slots) {
      require_dense(*slot);
      models.push_back(slot->model);
    }
    const FlatLayout layout(numels_of(models), run.world_size(), cut);
    const auto options = models.front().options().requires_grad(false);
    const auto main_options = options.dtype(main_dtype_of(models.front().scalar_type()));

    Buffers buffers;
    buffers.data = torch::zeros({layout.size()}, options);
    buffers.data_part = buffers.data.narrow(0, run.rank() * layout.part_size(), layout.part_size());
    const torch::Tensor gradient = torch::zeros({layout.size()}, main_options);
    buffers.main = run.world_size() > 1 ? torch::zeros({layout.part_size()}, main_options) : gradient;
    move_into(buffers.data, layout, models);

    for (std::size_t i = 0; i < slots.size(); ++i) {
      Slot& slot = *slots[i];
      const Piece piece = layout.piece(i, run.rank());
      const torch::Tensor whole_held = slot.held;
      const torch::Tensor data = buffers.data_part.narrow(0, piece.offset, piece.numel);
      slot.main = buffers.main.narrow(0, piece.offset, piece.numel);
      slot.piece_begin = piece.begin;
      if (cut == Cut::at_borders && piece.numel > 0) {  // a whole tensor keeps its shape
        slot.piece_begin = -1;
        slot.held = alias_like(data, 0, slot.model).requires_grad_(true);
        slot.main = view_like(slot.main, 0, slot.model);
      } else {
        slot.held = data.variable_data().requires_grad_(true);
      }
      slot.stepped = slot.held;
      slot.arrivals = alias_like(gradient, layout.offset(i), slot.model);
      slot.model.mutable_grad() = slot.arrivals;
      pieces.emplace(whole_held.unsafeGetTensorImpl(), slot.held);
    }
    if (!frees(run)) run.gradients.buffers.push_back(gradient);
    buffers.gradient = StorageGate(
        gradient, "dovetail: a gradient was read after it was sent to its owner; read it in the optimizer's tensors.");
    buffers_.push_back(std::move(buffers));
  }

  bool frees_gradients_;
  std::vector<Buffers> buffers_;
};

namespace detail {

template <int level>
struct ShardedRunOf : ShardedRun {
  explicit ShardedRunOf(const Sharded<level>&) : ShardedRun(level) {}
};

}  // namespace detail

template <int level>
struct RunOf<Sharded<level>> {
  using type = detail::ShardedRunOf<level>;
};

}  // namespace dovetail
