// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>

#include <dovetail/core/traits.hpp>
#include <dovetail/optim/fused.hpp>
#include <dovetail/optim/scheduled.hpp>

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dovetail {

/// Which parameter takes the place of a tensor that an optimizer holds.
using Exchanges = std::unordered_map<const c10::TensorImpl*, Parameter>;

/// Where an optimizer whose traits say `unscales_itself` is told what its gradients have to be divided by: a public
/// member `double grad_scale`, named as PyTorch names it. It is set before every step: to the loss scale times what
/// accumulation and unequal batches need, to 1 where the run had to divide by itself. A step that overflowed is not
/// taken, so there is no `found_inf` to look at.
template <class Optimizer>
double* grad_scale_of(Optimizer& optimizer) {
  if constexpr (!optimizer_traits<Optimizer>.unscales_itself) {
    return nullptr;
  } else {
    constexpr bool has_grad_scale = requires {
      { (optimizer.grad_scale) } -> std::same_as<double&>;
    };
    static_assert(has_grad_scale,
                  "dovetail: an optimizer whose optimizer_traits say unscales_itself needs a public member "
                  "`double grad_scale = 1;`, by which its step divides gradients.");
    if constexpr (has_grad_scale) return &optimizer.grad_scale;
    return nullptr;
  }
}

/// One optimizer of a run: ours or LibTorch's, with its traits and its schedule.
class OptimizerEntry {
 public:
  using Binder = std::function<std::unique_ptr<BoundSchedule>(torch::optim::Optimizer&)>;

  /// @param grad_scale  from grad_scale_of
  OptimizerEntry(std::shared_ptr<torch::optim::Optimizer> optimizer, OptimizerTraits traits, Binder binder,
                 double* grad_scale = nullptr)
      : optimizer_(std::move(optimizer)),
        fused_(dynamic_cast<FusedOptimizer*>(optimizer_.get())),
        traits_(traits),
        binder_(std::move(binder)),
        grad_scale_(grad_scale) {}

  [[nodiscard]] torch::optim::Optimizer& base() const { return *optimizer_; }
  /// The same object, if it is one of ours; else null.
  [[nodiscard]] FusedOptimizer* fused() const { return fused_; }
  [[nodiscard]] const OptimizerTraits& traits() const { return traits_; }
  /// Null before bind_schedule, and without a schedule.
  [[nodiscard]] BoundSchedule* schedule() const { return schedule_.get(); }
  /// The optimizer's type, for messages: "dovetail::AdamW".
  [[nodiscard]] std::string type() const {
    const torch::optim::Optimizer& optimizer = *optimizer_;
    return c10::demangle(typeid(optimizer).name());
  }

  /// Steps with gradients divided by `divisor`: in the kernel for ours, by the optimizer itself where that is its
  /// trait, by a pass before for others.
  void step(double divisor) {
    ++taken_;
    if (fused_) return fused_->step(divisor);
    if (grad_scale_)
      *grad_scale_ = divisor;
    else if (divisor != 1)
      divide_gradients(divisor);
    optimizer_->step();
    publish();
  }

  /// Lets the optimizer evaluate the loss as often as it likes.
  void step_with(const torch::optim::Optimizer::LossClosure& closure) {
    ++taken_;
    optimizer_->step(closure);
    publish();
  }

  /// Adds a parameter group while training goes on. A fit takes it in before the next step, masters, pieces and
  /// schedules included, as it does what is added to the optimizer itself.
  ///
  /// @param parameters  of those that require a gradient since the fit began, some that no optimizer holds
  /// @param options     of the optimizer's own type: AdamWOptions, torch::optim::SGDOptions
  /// @throws Error(user_code) for options of another optimizer, or out of their range
  template <class Options>
  void add_param_group(const Parameters& parameters, Options options) {
    if constexpr (std::is_base_of_v<torch::optim::OptimizerOptions, Options>)
      add_held(parameters, std::make_unique<Options>(std::move(options)));
    else
      add_held(parameters, detail::hold(std::move(options)));
  }
  /// With the options of the optimizer itself.
  void add_param_group(const Parameters& parameters) { add_held(parameters, optimizer_->defaults().clone()); }

  /// How many groups and tensors the optimizer holds: another number where something was added.
  [[nodiscard]] std::size_t held() const {
    const auto& groups = std::as_const(*optimizer_).param_groups();
    std::size_t held = groups.size();
    for (const auto& group : groups) held += group.params().size();
    return held;
  }

  /// Puts other tensors in the place of those that groups hold: a rank's pieces, or masters. Names and step counts go
  /// on, and so does state where sizes and dtypes are equal. State that LibTorch's Adagrad makes in its constructor,
  /// and insists on in its step, is made for what has none.
  void exchange(const Exchanges& exchanges) {
    for (auto& group : optimizer_->param_groups())
      for (torch::Tensor& held : group.params())
        if (const auto found = exchanges.find(held.unsafeGetTensorImpl()); found != exchanges.end()) {
          const torch::Tensor before = std::exchange(held, found->second.tensor);
          if (fused_)
            fused_->carry_over(before, found->second);
          else
            carry_over(before, held);
        }
  }

  /// From now on each step of `master` also rounds it into `low`: in the same pass for ours, by a pass after the step
  /// for others.
  void publish_into(const torch::Tensor& master, const torch::Tensor& low) {
    if (fused_) return fused_->publish_into(master, low);
    published_.clear();
    if (low.numel() > 0) masters_.emplace_back(master, low);
  }

  /// Groups or the layout of tensors changed: everything is looked up anew.
  void rebind() {
    published_.clear();
    if (fused_) fused_->rebind();
  }

  /// Tells the schedule, if a step was taken since the last call.
  void advance_schedule() {
    if (schedule_ && taken_ != told_) schedule_->steps_taken(taken_);
    told_ = taken_;
  }

  /// Puts the schedule to work, with the learning rates that the groups have now.
  void bind_schedule() {
    if (binder_) schedule_ = binder_(*optimizer_);
  }

 private:
  void divide_gradients(double divisor) {
    torch::NoGradGuard no_grad;
    for (auto& group : optimizer_->param_groups())
      for (torch::Tensor& param : group.params())
        if (param.grad().defined()) param.mutable_grad().div_(divisor);
  }

  void add_held(const Parameters& parameters, std::unique_ptr<torch::optim::OptimizerOptions> options) {
    const torch::optim::OptimizerOptions &its = optimizer_->defaults(), &given = *options;
    if (typeid(its) != typeid(given))
      throw Error(ExitCode::user_code, type() + " was given a group with the options of another optimizer: " +
                                           c10::demangle(typeid(given).name()) + ". Leave them out or use this one's.");
    if (fused_) fused_->check_options(given);
    // Not by LibTorch's add_param_group, which replaces options by the optimizer's: those of types that it does not
    // know, and values that it takes for a default.
    optimizer_->param_groups().emplace_back(parameters.tensors(), std::move(options));
  }

  void carry_over(const torch::Tensor& held, const torch::Tensor& with) {
    std::erase_if(masters_, [&](const auto& pair) { return pair.first.is_same(held); });
    auto& states = optimizer_->state();
    std::unique_ptr<torch::optim::OptimizerParamState> state;
    if (const auto found = states.find(held.unsafeGetTensorImpl()); found != states.end()) {
      state = std::move(found->second);
      states.erase(found);
    }
    const bool alike = held.sizes() == with.sizes() && held.scalar_type() == with.scalar_type();
    if (dynamic_cast<torch::optim::Adagrad*>(optimizer_.get()) && !(state && alike)) {
      const auto& options = static_cast<const torch::optim::AdagradOptions&>(optimizer_->defaults());
      auto made = std::make_unique<torch::optim::AdagradParamState>();
      made->step(0);
      made->sum(torch::full_like(with.detach(), options.initial_accumulator_value()));
      state = std::move(made);
    } else if (!alike) {
      state.reset();
    }
    if (state) states[with.unsafeGetTensorImpl()] = std::move(state);
  }

  // Of LibTorch's optimizers: masters beside each other are rounded in one pass.
  void publish() {
    if (masters_.empty()) return;
    torch::NoGradGuard no_grad;
    if (published_.empty()) {
      std::vector<torch::Tensor> from, to;
      for (const auto& [master, low] : masters_) {
        from.push_back(master.detach());
        to.push_back(low.detach());
      }
      published_ = merge_adjacent(from, to);
    }
    for (const Run& run : published_) run.grad.copy_(run.param);
  }

  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  FusedOptimizer* fused_;
  OptimizerTraits traits_;
  Binder binder_;
  double* grad_scale_;
  std::unique_ptr<BoundSchedule> schedule_;
  int64_t taken_ = 0, told_ = 0;                                  // steps, and how many of them the schedule knows
  std::vector<std::pair<torch::Tensor, torch::Tensor>> masters_;  // of one that is not ours, with their low copies
  std::vector<Run> published_;                                    // param: those masters, grad: what they go to
};

}  // namespace dovetail
