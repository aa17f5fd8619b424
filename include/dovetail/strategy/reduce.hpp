// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/traits.hpp>
#include <optional>
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

/// Of a `.reduce_format`.
constexpr std::string_view name_of(std::optional<Format> format) {
  return format ? name_of(*format) : "as summed";
}

}  // namespace dovetail
