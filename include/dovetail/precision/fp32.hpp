// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/policy_base.hpp>
#include <dovetail/core/traits.hpp>
#include <string_view>

namespace dovetail {

/// Single precision throughout. It is the Precision that does nothing, so it is the one to copy for a new one.
struct FP32 final : PrecisionBase {
  static constexpr std::string_view name = "fp32";
  static constexpr PrecisionTraits traits{.accepts_closure = true};
};

}  // namespace dovetail
