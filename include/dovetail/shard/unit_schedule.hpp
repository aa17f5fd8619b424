// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace dovetail {

/// A unit is called, inside of `depth` others. Calls of a unit that is still there from its last call are no new visit.
struct UnitVisit {
  int unit = 0;
  int depth = 0;
  friend bool operator==(const UnitVisit&, const UnitVisit&) = default;
};

/// What backward does with the unit of a visit: has it gathered, or is through with it.
struct BackwardStep {
  enum class Kind { gather, finish };
  Kind kind;
  std::size_t visit;
  bool reduces;  ///< finish, at the unit's first visit: all of its gradient is there
};

/// The order in which units are visited in one forward, the same on every rank, and the order of backward that follows
/// from it. Numbers only: no tensor, no communication.
class UnitSchedule {
 public:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  const std::vector<UnitVisit>& visits() const { return visits_; }

  /// The next visit of the unit from position `from` on.
  std::size_t next_of(int unit, std::size_t from) const {
    const auto found = std::find_if(visits_.begin() + std::ptrdiff_t(from), visits_.end(),
                                    [unit](const UnitVisit& visit) { return visit.unit == unit; });
    return found == visits_.end() ? none : std::size_t(found - visits_.begin());
  }

  void append(UnitVisit visit) {
    visits_.push_back(visit);
    planned_ = false;
  }

  /// Forgets what comes before `position`.
  void forget_before(std::size_t position) {
    visits_.erase(visits_.begin(), visits_.begin() + std::ptrdiff_t(position));
    planned_ = false;
  }

  /// Forward reversed: a unit is gathered before the visits inside it and finished after them.
  const std::vector<BackwardStep>& backward() {
    plan();
    return steps_;
  }
  std::size_t gather_at(std::size_t visit) const { return gather_at_[visit]; }  ///< position in backward()
  std::size_t finish_at(std::size_t visit) const { return finish_at_[visit]; }

 private:
  void plan() {
    if (planned_) return;
    planned_ = true;
    const std::size_t n = visits_.size();
    steps_.clear();
    gather_at_.assign(n, 0);
    finish_at_.assign(n, 0);
    emit(0, n);
  }

  /// The visits of [begin, end), which is a list of trees: each begins with a visit that no earlier one contains.
  void emit(std::size_t begin, std::size_t end) {
    std::vector<std::size_t> tops;
    for (std::size_t i = begin; i < end; ++i)
      if (tops.empty() || visits_[i].depth <= visits_[tops.back()].depth) tops.push_back(i);
    for (std::size_t next = end; !tops.empty(); next = tops.back(), tops.pop_back()) {
      const std::size_t top = tops.back();
      gather_at_[top] = steps_.size();
      steps_.push_back({BackwardStep::Kind::gather, top, false});
      emit(top + 1, next);
      finish_at_[top] = steps_.size();
      steps_.push_back({BackwardStep::Kind::finish, top, next_of(visits_[top].unit, 0) == top});
    }
  }

  std::vector<UnitVisit> visits_;
  std::vector<BackwardStep> steps_;
  std::vector<std::size_t> gather_at_, finish_at_;
  bool planned_ = false;
};

}  // namespace dovetail
