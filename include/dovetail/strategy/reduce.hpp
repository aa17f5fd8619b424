// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace dovetail {

/// When gradients are sent to their owners, under accumulation: after every micro-batch, so that whole gradients never
/// stay; or once, at the window's end, which sends less and keeps whole gradients until then.
enum class Reduce { every_micro_batch, at_boundary };

inline constexpr Reduce every_micro_batch = Reduce::every_micro_batch;
inline constexpr Reduce at_boundary = Reduce::at_boundary;

constexpr std::string_view name_of(Reduce reduce) {
  return reduce == at_boundary ? "at_boundary" : "every_micro_batch";
}

}  // namespace dovetail
