// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <dovetail/launch/error.hpp>
#include <dovetail/optim/parameters.hpp>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace dovetail {

/// Parameters that are stepped with the same options.
template <class Options>
struct ParameterGroup {
  Parameters parameters;
  Options options{};
};

namespace detail {

/// Options that can be listed by name.
struct ListedOptions : torch::optim::OptimizerOptions {
  using Visit = std::function<void(std::string_view name, double value)>;
  virtual void each(const Visit& visit) const = 0;
};

/// LibTorch's face of our options: holds the aggregate that users write with designated initializers, and gives
/// LibTorch's schedulers the learning rate to read and set.
template <class Options>
class HeldOptions final : public ListedOptions {
 public:
  explicit HeldOptions(Options held) : value(std::move(held)) {}

  // Not by make_unique: a smart pointer to each type of options costs every unit that includes this.
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::unique_ptr<torch::optim::OptimizerOptions>(new HeldOptions(value));
  }
  double get_lr() const override { return value.lr; }
  void set_lr(const double lr) override { value.lr = lr; }
  void each(const Visit& visit) const override {
    if constexpr (requires { value.each(visit); })
      value.each(visit);
    else
      visit("lr", value.lr);
  }

  Options value;
};

/// Options as LibTorch's optimizers own them.
template <class Options>
std::unique_ptr<torch::optim::OptimizerOptions> hold(Options options) {
  return HeldOptions<Options>(std::move(options)).clone();
}

/// A parameter group whose options are held for LibTorch.
struct HeldGroup {
  Parameters parameters;
  std::unique_ptr<torch::optim::OptimizerOptions> options;
};

/// @param check  throws for options that are out of their range
template <class Options, class Check>
std::vector<HeldGroup> held(std::vector<ParameterGroup<Options>> groups, Check&& check) {
  std::vector<HeldGroup> held;
  for (auto& group : groups) {
    check(group.options);
    held.push_back({std::move(group.parameters), hold(group.options)});
  }
  return held;
}

/// Refuses an option that is out of its range, or no number, by name.
inline void require_option(bool holds, std::string_view optimizer, std::string_view rule, double value) {
  const bool finite = std::isfinite(value);
  if (holds && finite) return;
  throw Error(ExitCode::user_code, std::string(optimizer) + ": " + std::string(rule) +
                                       (finite ? "" : " and must be finite") + ", got " + std::to_string(value) + ".");
}

}  // namespace detail
}  // namespace dovetail
