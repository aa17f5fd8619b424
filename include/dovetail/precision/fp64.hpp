// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/policy_base.hpp>
#include <dovetail/core/traits.hpp>
#include <string_view>

namespace dovetail {

/// Double precision throughout: the model and every floating batch are cast to it.
struct FP64 final : PrecisionBase {
  static constexpr std::string_view name = "fp64";
  static constexpr PrecisionTraits traits{.compute = Format::fp64, .storage = Format::fp64, .accepts_closure = true};
};

}  // namespace dovetail
