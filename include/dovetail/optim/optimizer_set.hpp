// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/optim/held_names.hpp>
#include <dovetail/optim/libtorch_traits.hpp>
#include <dovetail/optim/optimizer_entry.hpp>
#include <dovetail/optim/optimizer_types.hpp>
#include <dovetail/optim/parameters.hpp>

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dovetail {

/// All optimizers of a run, in the order in which configure_optimizers gave them.
class OptimizerSet {
 public:
  OptimizerSet() = default;

  /// From what configure_optimizers returned. Throws Error{user_code} for a null pointer.
  template <class Result>
  explicit OptimizerSet(Result result) requires OptimizerResult<Result> {
    add(std::move(result), {});
  }

  auto begin() { return entries_.begin(); }
  auto end() { return entries_.end(); }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  OptimizerEntry& operator[](std::size_t k) { return entries_[k]; }
  const OptimizerEntry& operator[](std::size_t k) const { return entries_[k]; }

  /// Groups or the layout of tensors changed: everything is looked up anew.
  void rebind() {
    for (OptimizerEntry& entry : entries_) entry.rebind();
  }

  void bind_schedules() {
    for (OptimizerEntry& entry : entries_) entry.bind_schedule();
  }

  /// To be called after each step that some of them took: a schedule counts the steps of its own optimizer.
  void advance_schedules() {
    for (OptimizerEntry& entry : entries_) entry.advance_schedule();
  }

  /// To be called after each epoch with the number of epochs so far.
  void epochs_ended(int64_t epochs) {
    for (OptimizerEntry& entry : entries_)
      if (entry.schedule()) entry.schedule()->epochs_ended(epochs);
  }

  /// To be called after each validation; `metric(name)` returns a pointer to the value, or null if nothing of that name
  /// was logged. Throws Error{user_code} if a schedule monitors what is not there.
  template <class Metric>
  void validated(Metric&& metric) {
    for (OptimizerEntry& entry : entries_) {
      const std::string monitor = entry.schedule() ? entry.schedule()->monitor() : std::string();
      if (monitor.empty()) continue;
      const double* value = metric(monitor);
      if (!value)
        throw Error(ExitCode::user_code,
                    "the schedule of " + entry.type() + " monitors '" + monitor +
                        "', which was not logged in validation; log it in validation_step or correct the name.");
      entry.schedule()->observe(*value);
    }
  }

  /// Refuses optimizers over nothing, over a tensor that is not among `parameters`, or two over the same tensor, by
  /// Error{user_code}. "Made too early" is found here: tensors of before the model was cut are not among them.
  void check_holds_only(const Parameters& parameters) const {
    std::unordered_map<const c10::TensorImpl*, const Parameter*> known;
    std::unordered_map<const c10::TensorImpl*, std::size_t> owner;
    for (const Parameter& parameter : parameters) known.emplace(parameter.tensor.unsafeGetTensorImpl(), &parameter);
    for (std::size_t k = 0; k < entries_.size(); ++k) check_entry(k, known, owner);
  }

 private:
  void check_entry(std::size_t k, const std::unordered_map<const c10::TensorImpl*, const Parameter*>& known,
                   std::unordered_map<const c10::TensorImpl*, std::size_t>& owner) const {
    const auto refuse = [&](const std::string& why) {
      throw Error(ExitCode::user_code, "optimizer " + std::to_string(k) + " (" + entries_[k].type() + ") " + why);
    };
    const auto& groups = std::as_const(entries_[k].base()).param_groups();
    std::size_t held = 0;
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (std::size_t i = 0; i < groups[g].params().size(); ++i, ++held) {
        const torch::Tensor& param = groups[g].params()[i];
        if (!param.defined()) refuse("holds an undefined tensor as " + place(g, i) + ".");
        const auto found = known.find(param.unsafeGetTensorImpl());
        if (found == known.end())
          refuse("holds a tensor that may not be optimized here: " + named(k, param) + "shape " +
                 detail::text(param.sizes()) + ", " + place(g, i) +
                 ". Make it in configure_optimizers, from the Parameters given there, or add a group from "
                 "run.parameters(), and use nothing else.");
        const auto [other, first] = owner.emplace(param.unsafeGetTensorImpl(), k);
        if (!first && other->second != k)
          refuse("holds '" + found->second->name + "', which optimizer " + std::to_string(other->second) +
                 " holds too.");
        if (!first) refuse("holds '" + found->second->name + "' twice.");
      }
    if (held == 0)
      refuse(
          "holds no parameters: nothing would be trained. Give it some of the Parameters that configure_optimizers "
          "gets.");
  }

  std::string named(std::size_t k, const torch::Tensor& param) const {
    const std::string name = entries_[k].fused() ? entries_[k].fused()->name_of(param) : std::string();
    return name.empty() ? name : "'" + name + "', ";
  }

  static std::string place(std::size_t group, std::size_t entry) {
    return "entry " + std::to_string(entry) + " of group " + std::to_string(group);
  }

  template <std::derived_from<torch::optim::Optimizer> Optimizer>
  void add(Optimizer optimizer, OptimizerEntry::Binder binder) {
    add(std::make_shared<Optimizer>(std::move(optimizer)), std::move(binder));
  }

  template <class Optimizer>
  void add(std::unique_ptr<Optimizer> optimizer, OptimizerEntry::Binder binder) {
    add(std::shared_ptr<Optimizer>(std::move(optimizer)), std::move(binder));
  }

  template <class Optimizer>
  void add(std::shared_ptr<Optimizer> optimizer, OptimizerEntry::Binder binder) {
    if (!optimizer)
      throw Error(ExitCode::user_code, "configure_optimizers returned a null pointer; return an optimizer.");
    double* const grad_scale = grad_scale_of(*optimizer);
    entries_.emplace_back(std::move(optimizer), optimizer_traits<Optimizer>, std::move(binder), grad_scale);
  }

  template <class Optimizer, class Schedule>
  void add(Scheduled<Optimizer, Schedule> with, const OptimizerEntry::Binder&) {
    auto binder = [schedule = std::move(with.schedule),
                   options = std::move(with.options)](torch::optim::Optimizer& optimizer) {
      return detail::bind_schedule(optimizer, schedule, options);
    };
    add(std::move(with.optimizer), std::move(binder));
  }

  template <class... Each>
  void add(std::tuple<Each...> each, const OptimizerEntry::Binder&) {
    std::apply([this](auto&... one) { (this->add(std::move(one), OptimizerEntry::Binder{}), ...); }, each);
  }

  std::vector<OptimizerEntry> entries_;
};

}  // namespace dovetail
