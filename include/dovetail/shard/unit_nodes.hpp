// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/tensors_in.hpp>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <exception>
#include <memory>
#include <vector>

namespace dovetail {

/// What a strategy puts behind a unit. A pass is one call of the unit's forward, or of another entry point.
struct UnitRuntime {
  virtual ~UnitRuntime() = default;

  /// Before the unit computes. Returns a number for the pass.
  virtual int64_t begin() = 0;
  /// After it has computed, or thrown.
  virtual void end(bool thrown) noexcept = 0;
  /// Backward is about to enter the pass: gradients of its outputs are there.
  virtual void before_backward(int64_t pass) = 0;
  /// Backward has left the pass: gradients of its inputs are there. Not called where no input needs a gradient.
  virtual void after_backward(int64_t pass) = 0;
};

namespace detail {

using torch::autograd::edge_list;
using torch::autograd::variable_list;

/// Identity over all inputs or all outputs of one pass of a unit: backward fires it once, when every gradient that will
/// come has come. Unlike a hook on a tensor it is not lost when a view of the tensor is changed in place.
///
/// Among the nodes that are ready the engine takes the one made last. The node over inputs is made before everything
/// inside the pass, so it fires after all of it, parameters included.
class UnitNode final : public torch::autograd::Node {
 public:
  enum class Side { inputs, outputs };

  UnitNode(edge_list&& next, std::shared_ptr<UnitRuntime> runtime, int64_t pass, Side side)
      : Node(std::move(next)), runtime_(std::move(runtime)), pass_(pass), side_(side) {}

 protected:
  variable_list apply(variable_list&& gradients) override {
    side_ == Side::outputs ? runtime_->before_backward(pass_) : runtime_->after_backward(pass_);
    return std::move(gradients);
  }

 private:
  std::shared_ptr<UnitRuntime> runtime_;
  int64_t pass_;
  Side side_;
};

/// The pointer to nodes became intrusive within the range of versions that Dovetail supports.
template <class N, class... Args>
auto make_node(Args&&... args) {
  using Pointer = decltype(torch::autograd::Edge::function);
  if constexpr (std::is_convertible_v<std::shared_ptr<N>, Pointer>)
    return std::make_shared<N>(std::forward<Args>(args)...);
  else
    return c10::make_intrusive<N>(std::forward<Args>(args)...);
}

/// Tensors that a node was put over: what the caller has, and the alias that stands for it from now on.
struct Routed {
  torch::Tensor original, alias;
  int64_t version;
};

/// Puts one node over those of the tensors that need a gradient, and replaces them by aliases that come out of it. The
/// same tensor twice stays the same tensor.
inline std::vector<Routed> route(const std::vector<torch::Tensor*>& tensors,
                                 const std::shared_ptr<UnitRuntime>& runtime, int64_t pass, UnitNode::Side side) {
  std::vector<Routed> routed;
  if (!torch::GradMode::is_enabled()) return routed;
  for (const torch::Tensor* tensor : tensors) {
    if (!tensor->defined() || !tensor->requires_grad()) continue;
    const auto same = [&](const Routed& one) { return one.original.is_same(*tensor); };
    if (std::none_of(routed.begin(), routed.end(), same))
      routed.push_back({*tensor, tensor->detach(), tensor->_version()});
  }
  if (routed.empty()) return routed;
  edge_list next;
  for (const Routed& one : routed) next.push_back(torch::autograd::impl::gradient_edge(one.original));
  const auto node = make_node<UnitNode>(std::move(next), runtime, pass, side);
  for (Routed& one : routed) torch::autograd::create_gradient_edge(one.alias, node);
  for (torch::Tensor* tensor : tensors)
    for (const Routed& one : routed)
      if (one.original.is_same(*tensor)) {
        *tensor = one.alias;
        break;
      }
  return routed;
}

/// The life of one pass: begins it, puts the nodes in place, ends it, also when the forward throws.
class UnitPass {
 public:
  explicit UnitPass(std::shared_ptr<UnitRuntime> runtime)
      : runtime_(std::move(runtime)), pass_(runtime_->begin()), exceptions_(std::uncaught_exceptions()) {}
  UnitPass(const UnitPass&) = delete;
  UnitPass& operator=(const UnitPass&) = delete;
  ~UnitPass() { runtime_->end(std::uncaught_exceptions() > exceptions_); }

  /// For each argument that shows its tensors.
  template <class T>
  void add_input(T& value) {
    if constexpr (tensors_in<T>() == TensorsIn::visible)
      visit_tensors(value, [this](torch::Tensor& tensor) { inputs_.push_back(&tensor); });
  }
  void route_inputs() { routed_ = route(inputs_, runtime_, pass_, UnitNode::Side::inputs); }

  template <class T>
  void route_outputs(T& value) {
    keep_changes_of_inputs();
    std::vector<torch::Tensor*> outputs;
    visit_tensors(value, [&](torch::Tensor& tensor) { outputs.push_back(&tensor); });
    route(outputs, runtime_, pass_, UnitNode::Side::outputs);
  }

  /// An input that was changed in place inside has a new history, which the caller's tensor must have too.
  void keep_changes_of_inputs() {
    for (const Routed& one : routed_)
      if (one.alias._version() != one.version && !one.original.is_leaf() && !one.original.is_view())
        torch::autograd::impl::set_gradient_edge(one.original, torch::autograd::impl::gradient_edge(one.alias));
    routed_.clear();
  }

 private:
  std::shared_ptr<UnitRuntime> runtime_;
  int64_t pass_;
  int exceptions_;
  std::vector<torch::Tensor*> inputs_;
  std::vector<Routed> routed_;
};

}  // namespace detail
}  // namespace dovetail
