// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/optim/each_option.hpp>
#include <dovetail/run/context.hpp>

#include <optional>
#include <sstream>

namespace dovetail {

namespace detail {

/// The eps of a group's options if they are those of Adam or AdamW, which have a second moment; else nothing.
inline std::optional<double> epsilon_of(const torch::optim::OptimizerOptions& options) {
  std::optional<double> eps, beta2;
  each_option(options, [&](std::string_view name, double value) {
    if (name == "eps") eps = value;
    if (name == "beta2") beta2 = value;
  });
  return beta2 ? eps : std::nullopt;
}

}  // namespace detail

/// Refuses Adam over fp16 tensors with an eps below 1e-4. Its second moment is kept in fp16, where the square of a
/// gradient below 2e-4 is zero; the update is then the first moment divided by eps, and a small eps blows it up.
/// Masters in fp32 have no such limit.
/// @throws Error(arguments)
inline void check_epsilon(const OptimizerSet& optimizers) {
  constexpr double least = 1e-4;
  for (std::size_t k = 0; k < optimizers.size(); ++k) {
    const auto& groups = std::as_const(optimizers[k].base()).param_groups();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      bool half = false;
      for (const torch::Tensor& tensor : groups[g].params()) half |= tensor.scalar_type() == torch::kHalf;
      const auto eps = detail::epsilon_of(groups[g].options());
      if (!half || !eps || *eps >= least) continue;
      std::ostringstream text;
      text << optimizers[k].type() << " has eps " << *eps << " in group " << g
           << ", too small for parameters in fp16: use at least 1e-4, or a precision with fp32 masters (master-fp16).";
      throw Error(ExitCode::arguments, text.str());
    }
  }
}

}  // namespace dovetail
