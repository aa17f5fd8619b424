// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/foreign_collectives.hpp>
#include <dovetail/run/bind.hpp>
#include <dovetail/run/dense.hpp>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <type_traits>
#include <utility>

namespace dovetail {

namespace detail {

/// The newest LibTorch releases take more arguments; which ones is asked of the constructor, not of a version number.
template <class Reducer = c10d::Reducer>
std::unique_ptr<Reducer> make_reducer(const std::vector<torch::Tensor>& parameters,
                                      std::vector<std::vector<size_t>> buckets,
                                      const c10::intrusive_ptr<c10d::ProcessGroup>& group, int64_t first_bytes,
                                      int64_t bytes) {
  std::vector<bool> sparse(parameters.size(), false);
  const std::unordered_map<size_t, std::string> names;
  if constexpr (std::is_constructible_v<Reducer, std::vector<torch::Tensor>, std::vector<std::vector<size_t>>,
                                        c10::intrusive_ptr<c10d::ProcessGroup>, std::vector<bool>, int64_t, bool, bool,
                                        std::unordered_map<size_t, std::string>, int64_t, bool, bool,
                                        std::vector<int64_t>>)
    return std::make_unique<Reducer>(parameters, buckets, group, sparse, bytes, /*find_unused_parameters=*/false,
                                     /*gradient_as_bucket_view=*/true, names, first_bytes,
                                     /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
                                     std::vector<int64_t>{});
  else
    return std::make_unique<Reducer>(parameters, buckets, group, sparse, bytes, /*find_unused_parameters=*/false,
                                     /*gradient_as_bucket_view=*/true, names, first_bytes);
}

}  // namespace detail

/// c10d::Reducer with bucket views as the flat home of gradients: they are reduced bucket by bucket while backward
/// computes.
///
/// The Reducer divides by the number of ranks; the window's divisor takes that back. A parameter that got no gradient
/// would leave the Reducer of one rank waiting for it and those of the others for the sum, so it is given zeros at the
/// end of backward, or before it where it is frozen; that it was missing is noticed and judged where all pairs do it.
class BucketReducer {
 public:
  BucketReducer(RunContext& run, int first_bucket_mb, int bucket_mb)
      : seen_(std::make_shared<std::vector<Seen>>(run.gradients.slots.size())) {
    std::vector<torch::Tensor> parameters;
    for (const Slot& slot : run.gradients.slots) {
      require_dense(slot);
      parameters.push_back(slot.model);
    }
    pack_in_backward_order(parameters);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      Slot& slot = run.gradients.slots[i];
      slot.model.mutable_grad() = torch::zeros_like(slot.model.detach());
      slot.main = slot.model.grad();
      auto node = torch::autograd::impl::grad_accumulator(slot.model);
      node->add_post_hook(std::unique_ptr<torch::autograd::FunctionPostHook>(new torch::autograd::utils::LambdaPostHook(
          [seen = seen_, i, model = slot.model](const torch::autograd::variable_list& outputs,
                                                const torch::autograd::variable_list& gradients) {
            (*seen)[i].told = true;
            if (!gradients.front().defined()) return outputs;  // a unit that recomputes may have none
            (*seen)[i].arrived = true;
            make_dense(model.mutable_grad());  // before the Reducer's own hook
            return outputs;
          })));
      accumulators_.push_back(std::move(node));  // the tensor holds it only weakly
    }
    const std::vector<size_t> limits{size_t(first_bucket_mb) << 20, size_t(bucket_mb) << 20};
    auto [buckets, sizes] = c10d::compute_bucket_assignment_by_size(parameters, limits);
    std::reverse(buckets.begin(), buckets.end());  // gradients arrive in reverse order
    reducer_ = detail::make_reducer(parameters, std::move(buckets), run.comm.process_group(), int64_t(limits[0]),
                                    int64_t(limits[1]));
    run.gradients.sum_is_times = 1.0 / run.world_size();
  }

  BucketReducer(const BucketReducer&) = delete;
  BucketReducer& operator=(const BucketReducer&) = delete;
  ~BucketReducer() { reducer_->remove_autograd_hooks(); }

  void before_forward(RunContext& run) {
    frozen_.clear();
    if (!run.at_boundary() || !torch::GradMode::is_enabled()) return;  // accumulate without reducing
    for (std::size_t i = 0; i < seen_->size(); ++i)
      if (!run.gradients.slots[i].model.requires_grad()) frozen_.push_back(i);
    reducer_->prepare_for_forward();
    name_foreign_collectives(run.comm, "the agreement on buckets", [&] {
      reducer_->rebuild_buckets();  // does so once, after the first window, in the order in which gradients arrived
    });
  }

  /// In a window of one micro-batch autograd keeps what it makes, and the Reducer copies it into the bucket, divided:
  /// one pass over memory, where zeroing, adding and dividing in place are three.
  void before_backward(RunContext& run) {
    for (std::size_t i = 0; i < seen_->size(); ++i) {
      (*seen_)[i].told = false;
      if (run.micro_batch == 0 && (*seen_)[i].arrived) refuse_touched(run.gradients.slots[i]);
    }
    if (run.micro_batch == 0) {
      if (run.window == 1) {
        for (Slot& slot : run.gradients.slots) slot.model.mutable_grad().reset();
      } else {
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& bucket : buckets_) bucket.zero_();
      }
    }
    if (!run.at_boundary()) return;
    reducer_->prepare_for_backward({});
    // Now, so that no bucket waits for them. What was thawed since the forward began gets a gradient of its own.
    std::erase_if(frozen_, [&](std::size_t i) { return run.gradients.slots[i].model.requires_grad(); });
    give_zeros(run, frozen_);
  }

  void after_backward(RunContext& run) {
    if (!run.at_boundary()) return;
    std::vector<std::size_t> missing;
    for (std::size_t i = 0; i < seen_->size(); ++i)
      if (!(*seen_)[i].told) missing.push_back(i);
    give_zeros(run, missing);
  }

  /// After the last backward of a window: takes over the Reducer's buckets where they changed.
  void finish_window(RunContext& run) {
    bool moved = false;
    for (std::size_t i = 0; i < seen_->size(); ++i) {
      Slot& slot = run.gradients.slots[i];
      slot.taken = std::exchange((*seen_)[i].arrived, false) && slot.frozen < run.gradients.backwards();
      torch::Tensor& gradient = slot.model.mutable_grad();
      if (gradient.const_data_ptr() != slot.main.const_data_ptr()) {
        slot.main = gradient;
        moved = true;
      } else {
        gradient = slot.main;  // the same tensor from step to step: optimizers know it by its identity
      }
    }
    if (moved) {
      std::vector<torch::Tensor> mains;
      for (const Slot& slot : run.gradients.slots) mains.push_back(slot.main);
      buckets_ = merge_adjacent(mains);
      run.gradients.finish(run.optimizers.size());
      run.optimizers.rebind();
    }
    run.gradients.summed = true;
  }

 private:
  struct Seen {
    bool told = false;     ///< the Reducer, in this micro-batch, that nothing more will come
    bool arrived = false;  ///< a gradient, in this window
  };

  /// To the Reducer, in the place of gradients that do not come. They are not noted as arrived.
  void give_zeros(RunContext& run, const std::vector<std::size_t>& which) {
    if (which.empty()) return;
    torch::autograd::variable_list tensors, zeros;
    std::vector<torch::Tensor> frozen;
    for (std::size_t i : which) {
      tensors.push_back(run.gradients.slots[i].model);
      zeros.push_back(torch::zeros_like(tensors.back().detach()));
      if (tensors.back().requires_grad()) continue;
      frozen.push_back(tensors.back());
      frozen.back().requires_grad_(true);
    }
    const std::vector<Seen> before = *seen_;
    name_foreign_collectives(run.comm, "the reduction of gradients",
                             [&] { torch::autograd::backward(tensors, zeros); });
    for (std::size_t i : which) (*seen_)[i].arrived = before[i].arrived;
    for (torch::Tensor& tensor : frozen) tensor.requires_grad_(false);
  }

  /// Parameters in the order in which buckets will hold their gradients, so that the optimizer can step many at once.
  static void pack_in_backward_order(std::vector<torch::Tensor> parameters) {
    std::reverse(parameters.begin(), parameters.end());
    std::map<torch::ScalarType, std::vector<torch::Tensor>> by_dtype;
    for (auto& parameter : parameters) by_dtype[parameter.scalar_type()].push_back(parameter);
    for (auto& [dtype, tensors] : by_dtype) {
      const FlatLayout layout(numels_of(tensors), 1);
      move_into(torch::empty({layout.size()}, tensors.front().options().requires_grad(false)), layout, tensors);
    }
  }

  std::shared_ptr<std::vector<Seen>> seen_;  // shared with the hooks, which live as long as any graph does
  std::vector<decltype(torch::autograd::impl::grad_accumulator(std::declval<torch::Tensor>()))> accumulators_;
  std::vector<torch::Tensor> buckets_;  // all gradients
  std::vector<std::size_t> frozen_;     // in the forward that ends a window
  std::unique_ptr<c10d::Reducer> reducer_;
};

}  // namespace dovetail
