// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dovetail {

/// What each rank tells the others at the end of a step, in one collective, as it travels: numbers of 8 bytes. After
/// these come one for each optimizer whose gradient norm is needed, and one for each loss where each has a scaler, or
/// the scale moves at every backward.
struct AgreedNumbers {
  double samples = 0;   ///< weight of this rank's batches
  double loss = 0;      ///< sum of loss x weight
  double missing = 0;   ///< parameters that got no gradient
  double nan = 0;       ///< 1: a loss was NaN
  double infinite = 0;  ///< 1: a loss was infinite
  double stops = 0;     ///< 1: the rank wants to stop before this step
  double frozen = 0;    ///< fingerprint of what is frozen
  double groups = 0;    ///< fingerprint of the parameter groups that were added
};

/// How many these are.
inline constexpr std::int64_t agreed_numbers = sizeof(AgreedNumbers) / sizeof(double);

}  // namespace dovetail
