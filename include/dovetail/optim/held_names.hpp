// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <dovetail/launch/error.hpp>
#include <dovetail/optim/fused_bucket.hpp>
#include <dovetail/optim/parameters.hpp>

#include <sstream>
#include <string>
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <utility>

namespace dovetail::detail {

inline std::string text(at::IntArrayRef sizes) {
  std::ostringstream out;
  out << sizes;
  return out.str();
}

/// The names of the parameters that an optimizer holds, and the refusals that use them.
class HeldNames {
 public:
  explicit HeldNames(std::string_view optimizer) : optimizer_(optimizer) {}

  [[nodiscard]] std::string_view optimizer() const { return optimizer_; }

  /// Takes a parameter in, if it can be optimized and is new.
  void add(const Parameter& parameter) {
    const auto refuse = [&](std::string_view why) {
      throw Error(ExitCode::user_code, optimizer_ + ": parameter '" + parameter.name + "' " + std::string(why));
    };
    if (!parameter.tensor.defined()) refuse("is undefined.");
    if (!names_.emplace(parameter.tensor.unsafeGetTensorImpl(), parameter.name).second)
      refuse("is in more than one group, or twice in one.");
    check(parameter.tensor, 0, 0);
    if (!parameter.tensor.is_leaf()) refuse("is the result of an operation; only leaves can be optimized.");
  }

  /// The name of `with` goes with its tensor from now on, that of `held` is forgotten.
  void rename(const torch::Tensor& held, const Parameter& with) {
    names_.erase(held.unsafeGetTensorImpl());
    names_[with.tensor.unsafeGetTensorImpl()] = with.name;
  }

  [[nodiscard]] std::string of(const torch::Tensor& param) const {
    const auto found = names_.find(param.unsafeGetTensorImpl());
    return found == names_.end() ? std::string() : found->second;
  }

  /// Throws if the kernels cannot step the group, which is number `g`, with the gradients that there are.
  void check_group(const torch::optim::OptimizerParamGroup& group, std::size_t g,
                   const torch::optim::OptimizerOptions& own) const {
    const torch::optim::OptimizerOptions& options = group.options();
    if (typeid(options) != typeid(own))
      throw Error(ExitCode::user_code, optimizer_ + ": group " + std::to_string(g) +
                                           " has the options of another optimizer; leave them out or use this one's.");
    for (std::size_t i = 0; i < group.params().size(); ++i) {
      const torch::Tensor& param = group.params()[i];
      if (param.numel() == 0) continue;
      check(param, g, i);
      const torch::Tensor& grad = gradient_of(param.unsafeGetTensorImpl());
      if (grad.defined()) check_gradient(param, g, i, grad);
    }
  }

 private:
  /// Throws if the kernels cannot step the tensor, which is this entry of this group.
  void check(const torch::Tensor& param, std::size_t group, std::size_t entry) const {
    const auto refuse = [&](const std::string& why) { this->refuse(param, group, entry, why); };
    if (param.layout() != torch::kStrided) refuse("it is not a dense tensor.");
    if (!param.is_floating_point()) refuse("its dtype is " + dtype(param) + ", not a floating one.");
    if (!is_dense(param))
      refuse("its strides " + text(param.strides()) +
             " share or skip memory, which the kernels would misread; make it contiguous first.");
  }

  void check_gradient(const torch::Tensor& param, std::size_t group, std::size_t entry,
                      const torch::Tensor& grad) const {
    const auto refuse = [&](const std::string& why) { this->refuse(param, group, entry, why); };
    if (grad.layout() != torch::kStrided) refuse("its gradient is sparse.");
    if (grad.sizes() != param.sizes()) refuse("its gradient has shape " + text(grad.sizes()) + ".");
    if (!reads(param, grad.scalar_type())) refuse("it is " + dtype(param) + " and its gradient " + dtype(grad) + ".");
    if (grad.device() != param.device())
      refuse("it is on " + param.device().str() + " and its gradient on " + grad.device().str() + ".");
  }

  static std::string dtype(const torch::Tensor& tensor) { return c10::toString(tensor.scalar_type()); }

  void refuse(const torch::Tensor& param, std::size_t group, std::size_t entry, const std::string& why) const {
    std::string name = of(param);
    name = name.empty() ? "entry " + std::to_string(entry) + " of group " + std::to_string(group) : "'" + name + "'";
    throw Error(ExitCode::user_code,
                optimizer_ + " cannot step parameter " + name + " of shape " + text(param.sizes()) + ": " + why);
  }

  std::string optimizer_;
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
};

}  // namespace dovetail::detail
