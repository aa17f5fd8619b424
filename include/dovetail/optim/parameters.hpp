// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dovetail {

/// One thing that may be optimized.
struct Parameter {
  std::string name;            ///< as the model registers it
  std::vector<int64_t> shape;  ///< in the model
  torch::Tensor
      tensor;  ///< what an optimizer may hold: the parameter itself, or this rank's piece of it (1-D, maybe empty)
};

/// The ordered list of what may be optimized, as configure_optimizers gets it. Parameter groups are cut out of it by
/// predicates on names, which hold under every strategy:
///
///     auto decays = [](const std::string& name) { return name.ends_with("weight"); };
///     return dt::AdamW({{p.where(decays), {.weight_decay = 0.1}}, {p.where_not(decays), {.weight_decay = 0}}});
class Parameters {
 public:
  Parameters() = default;
  explicit Parameters(std::vector<Parameter> list) : list_(std::move(list)) {}

  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }
  [[nodiscard]] std::size_t size() const { return list_.size(); }
  [[nodiscard]] bool empty() const { return list_.empty(); }
  const Parameter& operator[](std::size_t i) const { return list_[i]; }

  void push_back(Parameter parameter) { list_.push_back(std::move(parameter)); }

  /// Those whose name the predicate takes, in the same order.
  template <std::predicate<const std::string&> Predicate>
  [[nodiscard]] Parameters where(Predicate&& takes) const {
    Parameters taken;
    for (const Parameter& parameter : list_)
      if (takes(parameter.name)) taken.push_back(parameter);
    return taken;
  }

  /// The others: `where(f)` and `where_not(f)` share out the list.
  template <std::predicate<const std::string&> Predicate>
  [[nodiscard]] Parameters where_not(Predicate&& takes) const {
    return where([&](const std::string& name) { return !takes(name); });
  }

  /// The tensors alone, for an optimizer of LibTorch.
  [[nodiscard]] std::vector<torch::Tensor> tensors() const {
    std::vector<torch::Tensor> tensors;
    tensors.reserve(list_.size());
    for (const Parameter& parameter : list_) tensors.push_back(parameter.tensor);
    return tensors;
  }

 private:
  std::vector<Parameter> list_;
};

}  // namespace dovetail
