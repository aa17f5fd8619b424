// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/optim/optimizer.h>
#include <torch/utils.h>

#include <dovetail/launch/error.hpp>
#include <dovetail/optim/fused_bucket.hpp>
#include <dovetail/optim/held_names.hpp>
#include <dovetail/optim/options.hpp>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dovetail {

/// The state of one parameter in an optimizer, for looking at it and for checkpoints. The tensors are views with the
/// parameter's sizes and strides: writing to them changes the state.
struct ParameterState {
  std::vector<std::pair<std::string, torch::Tensor>> tensors;  ///< by LibTorch's names, "exp_avg" for one
  int64_t steps = 0;                                           ///< taken with this parameter
};

/// An optimizer whose update is one pass over memory: AdamW, Adam, SGD, Adagrad. It is a torch::optim::Optimizer, so
/// LibTorch's schedulers work on it; options are read at every step.
///
/// On the CPU the kernels are our own: an element's bits do not depend on where it lies, on what lies beside it, or on
/// the number of threads. On other devices they are LibTorch's fused ones.
///
/// Parameters whose data and gradients are adjacent in storage are stepped as one tensor. What was found is kept from
/// step to step: gradients that autograd makes anew are taken up without a search, views of a flat home are known by
/// their identity.
///
/// A parameter without gradient is left alone and its step count stays, as in LibTorch. Parameters may be fp32, fp64,
/// bf16 or fp16; state has the parameter's dtype, and so have gradients, which on the CPU may also be bf16 or fp16
/// under an fp32 parameter. Computed is in fp64 for fp64 parameters, else in fp32, with one rounding per stored number.
class FusedOptimizer : public torch::optim::Optimizer {
 public:
  /// As LibTorch's: evaluates the closure if there is one, steps, returns the closure's loss.
  torch::Tensor step(LossClosure closure = nullptr) override {
    torch::Tensor loss;
    if (closure) {
      torch::AutoGradMode with_grad(true);
      loss = closure();
    }
    step(1.0);
    return loss;
  }

  /// Steps with every gradient divided by `divisor`, inside the kernel: no pass of its own. On the CPU gradients stay
  /// as they are. Throws Error{user_code} for a parameter or gradient that the kernel would misread.
  void step(double divisor) {
    if (!bound_ || !refresh()) bind();
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (detail::Bucket& bucket : buckets_) {
      update(std::as_const(param_groups_)[bucket.group].options(), bucket, divisor);
      bucket.release();
    }
  }

  /// To be called when parameters were put in the groups or taken out, or when the layout of parameters or gradients
  /// changed: the next step looks everything up anew. State goes on with its parameter.
  void rebind() { bound_ = false; }

  /// `with` has taken the place of `held` in a group: its name and step count go on, and so does state where the sizes
  /// are equal.
  void carry_over(const torch::Tensor& held, const Parameter& with) {
    settle();
    bound_ = false;
    names_.rename(held, with);
    if (with.tensor.is_same(held)) return;
    if (auto record = records_.extract(held.unsafeGetTensorImpl())) {
      record.key() = with.tensor.unsafeGetTensorImpl();
      record.mapped().param = with.tensor;
      record.mapped().low.reset();
      if (with.tensor.numel() != held.numel()) record.mapped().state.clear();
      records_.insert(std::move(record));
    }
  }

  /// From now on each step of `master`, an fp32 parameter, also rounds it into `low`, of bf16 or fp16 and the same
  /// sizes and strides, in the same pass. Throws Error{user_code} for other tensors.
  void publish_into(const torch::Tensor& master, const torch::Tensor& low) {
    if (master.scalar_type() != torch::kFloat32 || !detail::is_low(low.scalar_type()) ||
        low.device() != master.device() || !is_dense(low) || !same_layout(master, low))
      throw Error(ExitCode::user_code, std::string(name()) + " cannot round a tensor of shape " +
                                           detail::text(master.sizes()) + " into one of shape " +
                                           detail::text(low.sizes()) +
                                           ": it goes from fp32 to bf16 or fp16, with equal sizes and strides.");
    settle();
    bound_ = false;
    detail::ParameterRecord& record = records_[master.unsafeGetTensorImpl()];
    record.param = master;
    record.low = low;
  }

  /// The state of a parameter; empty before its first step.
  ParameterState state_of(const torch::Tensor& param) {
    settle();
    ParameterState state;
    const auto found = records_.find(param.unsafeGetTensorImpl());
    if (found == records_.end()) return state;
    state.steps = found->second.steps;
    const auto specs = state_specs(std::as_const(param_groups_)[group_of(param)].options());
    for (std::size_t k = 0; k < std::min(specs.size(), found->second.state.size()); ++k) {
      const torch::Tensor& flat = found->second.state[k];
      state.tensors.emplace_back(specs[k].name, flat.as_strided(param.sizes(), param.strides(), flat.storage_offset()));
    }
    return state;
  }

  /// Throws Error{user_code} for options, of this optimizer's type, that are out of their range.
  virtual void check_options(const torch::optim::OptimizerOptions& options) const = 0;

  /// "AdamW", for messages.
  [[nodiscard]] std::string_view name() const { return names_.optimizer(); }

  /// The name under which the optimizer was given a tensor; empty if it was not given by name.
  [[nodiscard]] std::string name_of(const torch::Tensor& param) const { return names_.of(param); }

  /// How many tensors the kernels were given in the last step: 1 where everything merged.
  [[nodiscard]] std::size_t runs() const {
    std::size_t runs = 0;
    for (const auto& bucket : buckets_) runs += bucket.params.size();
    return runs;
  }

  /// How many kernel calls the last step took: one per group, step count, device and set of dtypes.
  [[nodiscard]] std::size_t calls() const { return buckets_.size(); }

 protected:
  FusedOptimizer(std::string_view name, std::vector<detail::HeldGroup> groups,
                 std::unique_ptr<torch::optim::OptimizerOptions> defaults)
      : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{},
                  groups.empty() ? std::move(defaults) : groups.front().options->clone()),
        names_(name) {
    for (auto& group : groups) {
      for (const Parameter& parameter : group.parameters) names_.add(parameter);
      param_groups_.emplace_back(group.parameters.tensors(), std::move(group.options));
    }
  }

  /// Updates every run of the bucket, with gradients divided by `divisor`.
  virtual void update(const torch::optim::OptimizerOptions& options, detail::Bucket& bucket, double divisor) const = 0;

  /// The state that these options need.
  virtual std::vector<detail::StateSpec> state_specs(const torch::optim::OptimizerOptions& options) const = 0;

  /// How many state_specs would return, without making them: asked at every step.
  virtual std::size_t state_count(const torch::optim::OptimizerOptions& options) const = 0;

  /// Does an update depend on how many went before? If not, parameters of all step counts share a call.
  virtual bool counts_steps() const { return true; }

  /// Does the kernel treat a parameter's first step in another way?
  virtual bool starts_apart() const { return false; }

 private:
  using Records = std::unordered_map<c10::TensorImpl*, detail::ParameterRecord>;
  /// What parameters that share a bucket have in common.
  struct Key {
    torch::ScalarType param, grad, low;
    c10::Device device;
    int64_t steps;  ///< taken
    bool fresh;     ///< none before
    bool operator==(const Key&) const = default;
  };

  std::size_t group_of(const torch::Tensor& param) const {
    for (std::size_t g = 0; g < param_groups_.size(); ++g)
      for (const torch::Tensor& held : param_groups_[g].params())
        if (held.is_same(param)) return g;
    return 0;
  }

  void settle() {
    for (auto& bucket : buckets_) bucket.settle();
  }

  bool refresh() {
    if (held_ != count_held()) return false;
    for (auto& bucket : buckets_)
      if (bucket.states.size() != state_count(std::as_const(param_groups_)[bucket.group].options()) ||
          !bucket.refresh())
        return false;
    for (const auto* idle : idle_)
      if (detail::gradient_of(idle).defined()) return false;
    return true;
  }

  std::size_t count_held() const {
    std::size_t held = param_groups_.size();
    for (const auto& group : param_groups_) held += group.params().size();
    return held;
  }

  // The slow way: sorts parameters that have gradients into buckets and builds them. Checks come first, so that a
  // refusal leaves state as it was.
  void bind() {
    torch::NoGradGuard no_grad;
    for (std::size_t g = 0; g < param_groups_.size(); ++g) names_.check_group(param_groups_[g], g, *defaults_);
    settle();
    buckets_.clear();
    idle_.clear();
    Records before;
    before.swap(records_);
    for (std::size_t g = 0; g < param_groups_.size(); ++g) bind_group(g, before);
    held_ = count_held();
    bound_ = true;
  }

  void bind_group(std::size_t g, Records& before) {
    std::vector<Key> keys;  // few, in the order of their first parameter
    std::vector<detail::Bucket> buckets;
    for (const torch::Tensor& param : param_groups_[g].params()) {
      c10::TensorImpl* const id = param.unsafeGetTensorImpl();
      if (param.numel() == 0) continue;
      if (auto known = before.extract(id)) records_.insert(std::move(known));
      detail::ParameterRecord& record = records_[id];
      record.param = param;
      if (!detail::gradient_of(id).defined()) {
        idle_.push_back(id);
        continue;
      }
      if (!record.state.empty() && record.state.front().numel() != param.numel()) record.state.clear();
      const bool fresh = starts_apart() && record.state.empty();
      const Key key{param.scalar_type(),
                    detail::gradient_of(id).scalar_type(),
                    record.low.defined() ? record.low.scalar_type() : torch::ScalarType::Undefined,
                    param.device(),
                    counts_steps() ? record.steps : 0,
                    fresh};
      std::size_t k = 0;
      while (k < keys.size() && keys[k] != key) ++k;
      if (k == keys.size()) {
        keys.push_back(key);
        buckets.emplace_back(g, fresh);
      }
      buckets[k].add(record);
    }
    const auto specs = state_specs(std::as_const(param_groups_)[g].options());
    for (auto& bucket : buckets) {
      bucket.build(specs);
      buckets_.push_back(std::move(bucket));
    }
  }

  detail::HeldNames names_;
  Records records_;  // buckets point to its nodes
  std::vector<detail::Bucket> buckets_;
  std::vector<c10::TensorImpl*> idle_;  // without gradient when the runs were cut
  std::size_t held_ = 0;
  bool bound_ = false;
};

}  // namespace dovetail
