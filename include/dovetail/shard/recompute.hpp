// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/launch/error.hpp>
#include <dovetail/shard/tensors_in.hpp>
#include <dovetail/shard/unit_nodes.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include <functional>
#include <iterator>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace dovetail::detail {

/// What a forward ran under and drew from, for running it once more: autocast, and the state of the generators of the
/// CPU and of the current GPU.
class ForwardState {
 public:
  ForwardState() {
    for (std::size_t i = 0; i < std::size(kinds); ++i)
      autocast_[i] = {at::autocast::is_autocast_enabled(kinds[i]), at::autocast::get_autocast_dtype(kinds[i])};
    auto all = generators();
    for (at::Generator& generator : all) {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      random_.push_back(generator.get_state());
    }
  }

  /// Runs `forward` as if it were then; afterwards everything is as before, the generator too.
  template <class Forward>
  decltype(auto) resume(Forward&& forward) const {
    struct Return {
      ForwardState before;
      ~Return() {
        at::autocast::clear_cache();
        before.apply();
      }
    } const back{};
    apply();
    return std::forward<Forward>(forward)();
  }

 private:
  static constexpr c10::DeviceType kinds[] = {at::kCPU, at::kCUDA};
  struct Autocast {
    bool enabled = false;
    at::ScalarType dtype{};
  };

  static std::vector<at::Generator> generators() {
    std::vector<at::Generator> all{at::detail::getDefaultCPUGenerator()};
    if (at::hasCUDA()) all.push_back(at::globalContext().defaultGenerator(at::kCUDA));
    return all;
  }

  void apply() const {
    for (std::size_t i = 0; i < std::size(kinds); ++i) {
      at::autocast::set_autocast_enabled(kinds[i], autocast_[i].enabled);
      at::autocast::set_autocast_dtype(kinds[i], autocast_[i].dtype);
    }
    at::autocast::set_autocast_cache_enabled(cached_);
    auto all = generators();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::lock_guard<std::mutex> lock(all[i].mutex());
      all[i].set_state(random_[i]);
    }
  }

  Autocast autocast_[std::size(kinds)];
  bool cached_ = at::autocast::is_autocast_cache_enabled();
  std::vector<at::Tensor> random_;
};

/// Stands in the graph for a forward whose activations were not kept: backward runs that forward again, with a graph of
/// its own, and hands on the gradients of its inputs and parameters.
class RecomputeNode final : public torch::autograd::Node {
 public:
  using Backward = std::function<variable_list(const variable_list& gradients)>;

  RecomputeNode(edge_list&& next, Backward backward) : Node(std::move(next)), backward_(std::move(backward)) {}

  void release_variables() override { backward_ = nullptr; }

 protected:
  variable_list apply(variable_list&& gradients) override {
    if (!backward_)
      throw Error(ExitCode::user_code,
                  "backward went a second time through a unit that recomputes its activations, after they were freed; "
                  "keep the graph with retain_graph.");
    if (torch::GradMode::is_enabled())
      throw Error(ExitCode::user_code,
                  "a unit that recomputes its activations has no second derivatives: leave recompute_activations out "
                  "where create_graph is used.");
    return backward_(gradients);
  }

 private:
  Backward backward_;
};

/// What of a value's tensors a graph can lead through.
template <class T>
std::vector<torch::Tensor*> differentiable_in(T& value) {
  std::vector<torch::Tensor*> found;
  if constexpr (tensors_in<T>() == TensorsIn::visible)
    visit_tensors(value, [&](torch::Tensor& tensor) {
      if (tensor.defined() && (tensor.is_floating_point() || tensor.is_complex())) found.push_back(&tensor);
    });
  return found;
}

/// The tensors in a tuple of arguments that need a gradient.
template <class... Args>
std::vector<torch::Tensor*> inputs_in(std::tuple<Args...>& arguments) {
  std::vector<torch::Tensor*> found;
  const auto add = [&](auto& argument) {
    for (torch::Tensor* tensor : differentiable_in(argument))
      if (tensor->requires_grad()) found.push_back(tensor);
  };
  std::apply([&](auto&... each) { (add(each), ...); }, arguments);
  return found;
}

/// Can a call be repeated? Its arguments must be copies that show their tensors, or have none.
template <class Result, class... Args>
inline constexpr bool can_recompute = tensors_in<Result>() == TensorsIn::visible &&
                                      ((tensors_in<Args>() != TensorsIn::hidden &&
                                        std::is_copy_constructible_v<Args>)&&...);

/// The forward once more, and backward through it. Statistics that a forward leaves in buffers (batch norm) are those
/// of the first one.
template <class Result, class Compute, class... Args>
variable_list backward_of(const Compute& compute, torch::nn::Module& module, std::tuple<Args...> arguments,
                          const std::vector<torch::Tensor>& parameters, const variable_list& gradients) {
  variable_list inputs;
  for (torch::Tensor* tensor : inputs_in(arguments)) inputs.push_back(*tensor = tensor->detach().requires_grad_());
  inputs.insert(inputs.end(), parameters.begin(), parameters.end());

  std::vector<std::pair<torch::Tensor, torch::Tensor>> buffers;
  for (const torch::Tensor& buffer : module.buffers())
    if (buffer.defined()) buffers.emplace_back(buffer, buffer.detach().clone());

  const torch::AutoGradMode with_grad(true);
  Result result = std::apply([&](auto&... each) -> Result { return compute(std::move(each)...); }, arguments);
  variable_list outputs, of_outputs;
  const auto found = differentiable_in(result);
  for (std::size_t i = 0; i < found.size(); ++i)
    if (gradients[i].defined() && found[i]->requires_grad()) {
      outputs.push_back(*found[i]);
      of_outputs.push_back(gradients[i]);
    }
  variable_list of_inputs(inputs.size());
  if (!outputs.empty())
    of_inputs = torch::autograd::grad(outputs, inputs, of_outputs, /*retain_graph=*/false, /*create_graph=*/false,
                                      /*allow_unused=*/true);
  for (auto& [buffer, first] : buffers) buffer.variable_data().copy_(first);
  return of_inputs;
}

/// A forward that keeps nothing but its arguments: see Unit::recompute_activations.
template <class Result, class Compute, class... Args>
Result recompute(const Compute& compute, torch::nn::Module& module, Args&&... args) {
  std::tuple<std::remove_cvref_t<Args>...> arguments(args...);
  edge_list next;
  std::vector<std::pair<torch::Tensor, int64_t>> versions;
  for (const torch::Tensor* input : inputs_in(arguments)) {
    next.push_back(torch::autograd::impl::gradient_edge(*input));
    versions.emplace_back(*input, input->_version());
  }
  std::vector<torch::Tensor> parameters;
  for (const torch::Tensor& parameter : module.parameters())
    if (parameter.requires_grad()) {
      next.push_back(torch::autograd::impl::gradient_edge(parameter));
      parameters.push_back(parameter);
    }

  const ForwardState state;
  Result result = [&]() -> Result {
    const torch::NoGradGuard no_grad;
    return compute(std::forward<Args>(args)...);
  }();
  if (next.empty()) return result;

  auto backward = [compute, module = module.shared_from_this(), arguments = std::move(arguments),
                   parameters = std::move(parameters), versions = std::move(versions),
                   state](const variable_list& gradients) {
    for (const auto& [input, version] : versions)
      if (input._version() != version)
        throw Error(ExitCode::user_code,
                    "an input of a unit that recomputes its activations was changed in place, by the unit or after it: "
                    "what it computed from is gone. Clone it first.");
    return state.resume([&] { return backward_of<Result>(compute, *module, arguments, parameters, gradients); });
  };
  const auto node = make_node<RecomputeNode>(std::move(next), std::move(backward));
  for (torch::Tensor* output : differentiable_in(result)) {
    *output = output->detach();
    torch::autograd::create_gradient_edge(*output, node);
  }
  return result;
}

}  // namespace dovetail::detail
