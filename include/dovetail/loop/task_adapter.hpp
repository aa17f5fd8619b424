// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/data/batch.hpp>
#include <dovetail/loop/state.hpp>
#include <dovetail/loop/step_context.hpp>

#include <c10/util/SmallVector.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <memory>
#include <type_traits>

namespace dovetail {

/// The losses of one micro-batch, nearly always one.
using Losses = c10::SmallVector<torch::Tensor, 1>;

/// What the loop sees of a Task. Independent of the policies, so compiled once per Task.
class TaskCalls {
 public:
  virtual ~TaskCalls() = default;
  virtual std::shared_ptr<torch::nn::Module> build_model() = 0;
  virtual OptimizerSet configure_optimizers(const Parameters& parameters) = 0;
  virtual int losses() const = 0;  ///< how many training_step returns; 0: there is none
  virtual Losses training_step(const Batch& batch, StepContext& step) = 0;
  virtual bool has_validation() const = 0;
  virtual void validation_step(const Batch& batch, StepContext& step) = 0;
};

namespace detail {

/// The model behind what configure_model returns: a shared_ptr, a unique_ptr or a ModuleHolder.
template <class T>
std::shared_ptr<T> as_shared(std::shared_ptr<T> model) {
  return model;
}
template <class T>
std::shared_ptr<T> as_shared(std::unique_ptr<T> model) {
  return model;
}
template <class T>
std::shared_ptr<T> as_shared(const torch::nn::ModuleHolder<T>& model) {
  return model.is_empty() ? nullptr : model.ptr();
}

/// How many losses a training step returns: one, or a std::array of them.
template <class Returned>
inline constexpr int number_of_losses = 1;
template <std::size_t count>
inline constexpr int number_of_losses<std::array<torch::Tensor, count>> = int(count);

template <class Task>
using ModelOf = typename decltype(as_shared(std::declval<Task&>().configure_model()))::element_type;

}  // namespace detail

template <class Task>
class TaskAdapter final : public TaskCalls {
 public:
  using Model = detail::ModelOf<Task>;

  explicit TaskAdapter(Task& task) : task_(task) {}

  /// For evaluation of a model that exists.
  TaskAdapter(Task& task, std::shared_ptr<Model> model) : task_(task), model_(std::move(model)) {}

  const std::shared_ptr<Model>& model() const { return model_; }

  std::shared_ptr<torch::nn::Module> build_model() override {
    if (!model_) model_ = detail::as_shared(task_.configure_model());
    if (!model_)
      throw Error(
          ExitCode::user_code,
          "configure_model returned no model: return a shared_ptr, a unique_ptr or a module holder that holds one.");
    return model_;
  }
  OptimizerSet configure_optimizers(const Parameters& parameters) override {
    if constexpr (requires { task_.configure_optimizers(parameters); })
      return OptimizerSet(task_.configure_optimizers(parameters));
    else
      return {};  // a Task that is only evaluated
  }
  int losses() const override { return count_losses(); }
  Losses training_step(const Batch& batch, StepContext& step) override {
    Losses losses;
    if constexpr (count_losses() == 1)
      losses.push_back(task_.training_step(*model_, batch, step));
    else if constexpr (count_losses() > 1)
      for (torch::Tensor& loss : task_.training_step(*model_, batch, step)) losses.push_back(std::move(loss));
    return losses;
  }
  bool has_validation() const override { return validates; }
  void validation_step(const Batch& batch, StepContext& step) override {
    if constexpr (validates) task_.validation_step(*model_, batch, step);
  }

 private:
  static constexpr bool validates = requires(Task & task, Model& model, const Batch& batch, StepContext& step) {
    task.validation_step(model, batch, step);
  };
  static constexpr bool trains = requires(Task & task, Model& model, const Batch& batch, StepContext& step) {
    task.training_step(model, batch, step);
  };
  static constexpr int count_losses() {
    if constexpr (trains)
      return detail::number_of_losses<std::remove_cvref_t<decltype(std::declval<Task&>().training_step(
          std::declval<Model&>(), std::declval<const Batch&>(), std::declval<StepContext&>()))>>;
    else
      return 0;
  }

  Task& task_;
  std::shared_ptr<Model> model_;
};

}  // namespace dovetail
