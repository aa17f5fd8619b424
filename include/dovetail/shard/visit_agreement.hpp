// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/communicator.hpp>
#include <dovetail/shard/unit_schedule.hpp>

#include <algorithm>
#include <optional>

namespace dovetail {

/// What all ranks visit next, each wishing for some visit or for none; none where nobody wishes. One collective of 8
/// bytes a rank. The innermost wish comes first, so that no unit is freed while it runs, then the unit that is first in
/// the model.
inline std::optional<UnitVisit> agree_on_visit(Communicator& comm, std::optional<UnitVisit> wish) {
  if (comm.size() == 1) return wish;
  constexpr double width = 1 << 20;  // more units than a model has
  const double mine = wish ? wish->depth * width + (width - 1 - wish->unit) : -1;
  const auto all = comm.all_gather(std::span<const double>(&mine, 1));
  const double most = *std::max_element(all.begin(), all.end());
  if (most < 0) return std::nullopt;
  const int depth = int(most / width);
  return UnitVisit{int(width - 1 - (most - depth * width)), depth};
}

}  // namespace dovetail
