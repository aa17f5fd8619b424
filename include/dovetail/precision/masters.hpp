// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/optim/adjacent.hpp>
#include <dovetail/optim/exchange.hpp>
#include <dovetail/run/context.hpp>

#include <unordered_map>
#include <utility>
#include <vector>

namespace dovetail {

/// fp32 master weights beside a model of a low format. The optimizer steps the masters, the model gets them rounded: by
/// our optimizers in the pass that steps them, after LibTorch's by a pass of its own.
///
/// They start from the weights as they were before the cast, so nothing is lost that the model once had. (Apex clones
/// them after the cast, which its own source regrets.) Under a sharding strategy each rank has masters of its pieces
/// only.
class Masters {
 public:
  /// Before the model is cast, by giving it other memory: keeps the old one. Of what was cut that is this rank's part.
  void remember(RunContext& run) {
    originals_.clear();
    for (const Slot& slot : run.gradients.slots) {
      const auto cut = run.cut.find(slot.model);
      originals_.push_back(cut ? Original{cut->values(), true} : Original{slot.model.detach(), false});
    }
  }

  /// Once optimizers exist and hold what is theirs: puts masters in the place of the low-format tensors.
  void wrap(RunContext& run) {
    torch::NoGradGuard no_grad;
    std::unordered_map<c10::TensorImpl*, torch::Tensor> masters;
    for (std::size_t i = 0; i < run.gradients.slots.size(); ++i) {
      Slot& slot = run.gradients.slots[i];
      if (slot.held.scalar_type() == torch::kFloat32 || slot.held.scalar_type() == torch::kFloat64) continue;
      slot.stepped = piece_of(originals_[i], slot).to(torch::kFloat32).clone().requires_grad_(true);
      masters.emplace(slot.held.unsafeGetTensorImpl(), slot.stepped);
    }
    originals_.clear();
    unpublished_.clear();
    published_.clear();
    for (std::size_t k = 0; k < run.optimizers.size(); ++k)
      for (auto& group : run.optimizers[k].base().param_groups())
        for (torch::Tensor& tensor : group.params())
          if (const auto found = masters.find(tensor.unsafeGetTensorImpl()); found != masters.end()) {
            const torch::Tensor held = tensor, master = found->second;
            exchange(run.optimizers[k].base(), tensor, master);
            if (FusedOptimizer* ours = run.optimizers[k].fused())
              ours->publish_into(master, held);
            else if (held.numel() > 0)
              unpublished_.emplace_back(master, held);
          }
  }

  /// After a taken step: rounds the masters of optimizers that do not do it themselves into what the model, or the
  /// strategy's piece of it, holds.
  void publish() {
    torch::NoGradGuard no_grad;
    if (published_.empty() && !unpublished_.empty()) {
      std::vector<torch::Tensor> from, to;
      for (const auto& [master, held] : unpublished_) {
        from.push_back(master.detach());
        to.push_back(held.detach());
      }
      published_ = merge_adjacent(from, to);
    }
    for (const auto& run_of_masters : published_) run_of_masters.grad.copy_(run_of_masters.param);
  }

 private:
  struct Original {
    torch::Tensor values;
    bool is_piece;  ///< the one that `held` will stand for
  };

  /// The elements of the original that this rank's `held` stands for.
  static torch::Tensor piece_of(const Original& original, const Slot& slot) {
    const torch::Tensor& values = original.values;
    if (original.is_piece || slot.piece_begin < 0) return values;
    return values.as_strided({slot.held.numel()}, {1}, values.storage_offset() + slot.piece_begin);
  }

  std::vector<Original> originals_;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> unpublished_;  // masters that LibTorch's optimizers step
  std::vector<Run> published_;  // param: those masters, grad: what they are rounded into
};

}  // namespace dovetail
