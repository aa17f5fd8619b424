// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/number_gather.hpp>
#include <dovetail/shard/unit_schedule.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace dovetail {

/// What all ranks visit next, each wishing for some visit or for none; none where nobody wishes. One collective of 8
/// bytes a rank, which may be under way while the rank goes on. The innermost wish comes first, so that no unit is
/// freed while it runs, then the unit that is first in the model. Where nobody wishes, ranks also know whether all of
/// them said the same about something else.
class VisitAgreement {
 public:
  /// @param said  by a rank without a wish: a number below 2^52
  void start(Communicator& comm, std::optional<UnitVisit> wish, std::uint64_t said = 0) {
    const double mine = wish ? wish->depth * width + (width - 1 - wish->unit) : -1 - double(said);
    numbers_.start(comm, {&mine, 1});
  }

  std::optional<UnitVisit> finish() {
    const auto all = numbers_.finish();
    const double most = *std::max_element(all.begin(), all.end());
    if (most < 0) {
      said_the_same_ = most == *std::min_element(all.begin(), all.end());
      return std::nullopt;
    }
    const int depth = int(most / width);
    return UnitVisit{int(width - 1 - (most - depth * width)), depth};
  }

  std::optional<UnitVisit> agree(Communicator& comm, std::optional<UnitVisit> wish, std::uint64_t said = 0) {
    start(comm, wish, said);
    return finish();
  }

  /// All ranks, when nobody wished for anything.
  bool said_the_same() const { return said_the_same_; }

 private:
  static constexpr double width = 1 << 20;  // more units than a model has

  NumberGather numbers_;
  bool said_the_same_ = true;
};

}  // namespace dovetail
