// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/precision/convert.hpp>
#include <dovetail/run/dense.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace dovetail {

/// The dtype in which the gradients of a parameter are sent: that of its main gradient, or the strategy's
/// `.reduce_format`, in which each rank's gradient is rounded once before it is summed in fp32.
/// @throws Error(arguments) for a format that the main gradient cannot be summed from
inline torch::ScalarType reduce_dtype(const Slot& slot, std::optional<Format> chosen, std::string_view strategy) {
  const torch::ScalarType main = main_dtype_of(slot.model.scalar_type());
  const torch::ScalarType dtype = chosen ? dtype_of(*chosen) : main;
  if (dtype == main || detail::sum_dtype(dtype) == main) return dtype;
  throw Error(ExitCode::arguments, std::string(strategy) + "'s reduce_format cannot be " + c10::toString(dtype) +
                                       ": the gradient of '" + slot.name + "' is summed in " + c10::toString(main) +
                                       ". Gradients summed in Float may be sent as Float, BFloat16 or Half; others as "
                                       "they are.");
}

}  // namespace dovetail
