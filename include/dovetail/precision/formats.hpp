// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/traits.hpp>

namespace dovetail {

/// Number formats as types, for precisions that take one: `MasterWeights<BF16>`. They are no precisions themselves.
struct BF16 {
  static constexpr Format format = Format::bf16;
};

/// IEEE half precision; its small range is why a loss scaler exists.
struct FP16 {
  static constexpr Format format = Format::fp16;
};

}  // namespace dovetail
