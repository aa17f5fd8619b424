// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/policy_base.hpp>
#include <dovetail/core/traits.hpp>
#include <string_view>

namespace dovetail {

/// One process, one device, no process group: the loop and nothing else. It is the Strategy that does nothing, so it is
/// the one to copy for a new one.
struct SingleDevice final : StrategyBase {
  static constexpr std::string_view name = "single";
  static constexpr StrategyTraits traits{.accepts_closure = true};
};

}  // namespace dovetail
