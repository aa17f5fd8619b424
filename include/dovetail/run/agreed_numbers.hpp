// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dovetail {

/// How many numbers each rank tells the others at the end of a step, in one collective; one more for each optimizer
/// whose gradient norm is needed, and for each loss where each has a scaler, or the scale moves at every backward.
inline constexpr std::int64_t agreed_numbers = 8;

}  // namespace dovetail
