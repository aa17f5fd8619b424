// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <dovetail/optim/adjacent.hpp>

#include <string_view>
#include <utility>
#include <vector>

namespace dovetail::detail {

/// One tensor of optimizer state per parameter.
struct StateSpec {
  std::string_view name;
  double initial = 0;
};

/// What the optimizer knows of one parameter. The state tensors are 1-D, in the memory order of the parameter, and are
/// slices of what the kernel is given; so they stay right when runs are cut anew.
struct ParameterRecord {
  torch::Tensor param;
  torch::Tensor low;  ///< what the parameter is rounded into at every step; undefined: nothing
  std::vector<torch::Tensor> state;
  int64_t steps = 0;
};

/// The gradient without the checks that `Tensor::grad` does for tensors that are no leaves.
inline const torch::Tensor& gradient_of(const c10::TensorImpl* param) {
  static const torch::Tensor none;
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(param->autograd_meta());
  return meta ? meta->grad_ : none;
}

inline bool is_low(torch::ScalarType dtype) {
  return dtype == torch::kBFloat16 || dtype == torch::kHalf;
}

/// Can the kernels step `param` with gradients of this dtype?
inline bool reads(const torch::Tensor& param, torch::ScalarType grad) {
  return grad == param.scalar_type() || (param.is_cpu() && param.scalar_type() == torch::kFloat32 && is_low(grad));
}

/// May the kernel read `grad` as it lies, element by element along `param`?
inline bool reads_along(const torch::Tensor& param, const torch::Tensor& grad, torch::ScalarType dtype) {
  return grad.layout() == torch::kStrided && grad.scalar_type() == dtype && grad.device() == param.device() &&
         same_layout(param, grad);
}

/// The same by a few comparisons of what tensors carry with them, for every step: yes, or look closer.
inline bool surely_reads_along(const c10::TensorImpl& param, const c10::TensorImpl& grad, caffe2::TypeMeta dtype) {
  return grad.key_set() == param.key_set() && grad.dtype() == dtype && grad.numel() == param.numel() &&
         grad.is_contiguous();
}

/// The arguments of one kernel call: parameters of one group, one step count, and one set of dtypes and device, merged
/// into runs. The vectors live from step to step, so that a step allocates nothing.
class Bucket {
 public:
  std::size_t group = 0;
  bool fresh = false;                        ///< no state before this step: SGD starts its momentum with the gradient
  std::vector<torch::Tensor> params, grads;  ///< one per run
  std::vector<torch::Tensor> lows;           ///< one per run; or none, where nothing is to be published
  std::vector<std::vector<torch::Tensor>> states;  ///< per StateSpec, one per run
  std::vector<ParameterRecord*> records;           ///< all members of all runs

  Bucket(std::size_t group_index, bool is_fresh) : group(group_index), fresh(is_fresh) {}

  void add(ParameterRecord& record) { records.push_back(&record); }

  /// Merges the parameters into runs and finds or makes the state of each.
  void build(const std::vector<StateSpec>& specs) {
    std::vector<torch::Tensor> all_params, all_grads, all_lows;
    grad_dtype_ = gradient_of(records.front()->param.unsafeGetTensorImpl()).scalar_type();
    for (const ParameterRecord* record : records) {
      all_params.push_back(record->param);
      all_grads.push_back(laid_out_as(record->param, gradient_of(record->param.unsafeGetTensorImpl())));
      if (record->low.defined()) all_lows.push_back(record->low);
    }
    const std::vector<Run> runs = merge_adjacent(all_params, all_grads, all_lows);
    for (const Run& run : runs) add_run(run, all_grads);
    states.clear();
    for (std::size_t k = 0; k < specs.size(); ++k) states.push_back(state_of_runs(runs, k, specs[k].initial));
  }

  /// Takes up this step's gradients. False if they are no longer where the runs were cut for them.
  bool refresh() {
    const caffe2::TypeMeta dtype = c10::scalarTypeToTypeMeta(grad_dtype_);
    for (const Single& single : singles_) {
      const torch::Tensor& grad = gradient_of(single.param);
      if (single.contiguous && surely_reads_along(*single.param, *grad.unsafeGetTensorImpl(), dtype)) {
        grads[single.run] = grad;
        continue;
      }
      if (!grad.defined() || !reads_along(records[single.record]->param, grad, grad_dtype_)) return false;
      grads[single.run] = single.contiguous ? grad : flat_view(grad, grad.numel());
      if (!single.contiguous) params[single.run] = flat_view(records[single.record]->param, grad.numel());
    }
    for (const Member& member : members_)
      if (gradient_of(member.param).unsafeGetTensorImpl() != member.grad || storage_of(member.param) != member.storage)
        return false;
    for (const auto& [low, storage] : published_)
      if (storage_of(low) != storage) return false;
    return true;
  }

  /// Lets go of gradients that autograd owns, so that `zero_grad` frees them; marks what was written to.
  void release() {
    for (const Single& single : singles_) {
      grads[single.run].reset();
      single.param->bump_version();
    }
    for (const Member& member : members_) member.param->bump_version();
    for (const auto& [low, storage] : published_) low->bump_version();
    ++taken_;
    fresh = false;
  }

  [[nodiscard]] bool on_cpu() const { return params.front().is_cpu(); }
  [[nodiscard]] torch::ScalarType dtype() const { return params.front().scalar_type(); }
  [[nodiscard]] torch::ScalarType grad_dtype() const { return grad_dtype_; }

  /// The number of the step that is about to be taken, from 1.
  [[nodiscard]] int64_t step() const { return records.front()->steps + taken_ + 1; }

  /// Hands the steps since `build` to the parameters' records.
  void settle() {
    for (ParameterRecord* record : records) record->steps += taken_;
    taken_ = 0;
  }

 private:
  struct Single {
    c10::TensorImpl* param;
    uint32_t run, record;
    bool contiguous;  // then the kernel is given the tensors themselves
  };
  struct Member {
    c10::TensorImpl* param;
    const c10::TensorImpl* grad;
    const c10::StorageImpl* storage;
  };

  static const c10::StorageImpl* storage_of(const c10::TensorImpl* tensor) {
    return tensor->unsafe_storage().unsafeGetStorageImpl();
  }

  // A copy only where the user put a gradient in place whose strides are not the parameter's.
  static torch::Tensor laid_out_as(const torch::Tensor& param, const torch::Tensor& grad) {
    if (reads_along(param, grad, grad.scalar_type())) return grad;
    return torch::empty_strided(param.sizes(), param.strides(), grad.options()).copy_(grad);
  }

  void add_run(const Run& run, const std::vector<torch::Tensor>& all_grads) {
    for (std::size_t i : run.members) {
      c10::TensorImpl* param = records[i]->param.unsafeGetTensorImpl();
      if (run.members.size() == 1)
        singles_.push_back({param, uint32_t(params.size()), uint32_t(i), run.param.is_same(records[i]->param)});
      else
        members_.push_back({param, all_grads[i].unsafeGetTensorImpl(), storage_of(param)});
      if (run.low.defined())
        published_.emplace_back(records[i]->low.unsafeGetTensorImpl(),
                                storage_of(records[i]->low.unsafeGetTensorImpl()));
    }
    params.push_back(run.param);
    grads.push_back(run.grad);
    if (run.low.defined()) lows.push_back(run.low);
  }

  // State of every run, from what its members have; what is new lies in one block, one run after another.
  std::vector<torch::Tensor> state_of_runs(const std::vector<Run>& runs, std::size_t k, double initial) {
    constexpr int64_t cache_line = 16;
    const auto padded = [](int64_t n) { return (n + cache_line - 1) / cache_line * cache_line; };
    std::vector<torch::Tensor> flats(runs.size());
    int64_t missing = 0;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      flats[r] = joined_state(runs[r], k);
      if (!flats[r].defined()) missing += padded(runs[r].param.numel());
    }
    torch::Tensor block;
    if (missing > 0) block = torch::full({missing}, initial, params.front().options().requires_grad(false));
    int64_t offset = 0;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      if (!flats[r].defined()) {
        flats[r] = block.narrow(0, offset, runs[r].param.numel());
        offset += padded(runs[r].param.numel());
        move_state(runs[r], k, flats[r]);
      }
      flats[r] = flats[r].as_strided(params[r].sizes(), params[r].strides(), flats[r].storage_offset());
    }
    return flats;
  }

  // A view over the members' state where it already lies as the run does.
  torch::Tensor joined_state(const Run& run, std::size_t k) const {
    const ParameterRecord* previous = nullptr;
    for (std::size_t i : run.members) {
      const ParameterRecord* record = records[i];
      if (record->state.size() <= k || !record->state[k].defined()) return {};
      if (record->state[k].scalar_type() != record->param.scalar_type()) return {};
      if (previous && !follows(previous->state[k], record->state[k])) return {};
      previous = record;
    }
    return flat_view(records[run.members.front()]->state[k], run.param.numel());
  }

  void move_state(const Run& run, std::size_t k, const torch::Tensor& flat) {
    int64_t offset = 0;
    for (std::size_t i : run.members) {
      ParameterRecord& record = *records[i];
      torch::Tensor slice = flat.narrow(0, offset, record.param.numel());
      offset += record.param.numel();
      if (record.state.size() <= k) record.state.resize(k + 1);
      if (record.state[k].defined()) slice.copy_(record.state[k]);
      record.state[k] = std::move(slice);
    }
  }

  std::vector<Single> singles_;
  std::vector<Member> members_;
  std::vector<std::pair<c10::TensorImpl*, const c10::StorageImpl*>> published_;  // low copies, and where they were
  torch::ScalarType grad_dtype_ = torch::kFloat32;
  int64_t taken_ = 0;
};

}  // namespace dovetail::detail
