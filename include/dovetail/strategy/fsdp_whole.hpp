// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/full_parameters.hpp>
#include <dovetail/shard/sharded_units.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dovetail::detail {

/// A scope has outlived the hook that opened it.
/// @throws Error(user_code)
[[noreturn]] inline void refuse_open_scope(const char* when) {
  throw Error(ExitCode::user_code, "a scope of full_parameters is still open when " + std::string(when) +
                                       ": let it end in the hook that opened it.");
}

/// What scopes of full_parameters find of an FSDP run: its units, and the root.
class FSDPParameters final : public ParameterHolder {
 public:
  explicit FSDPParameters(std::shared_ptr<ShardedUnits> all) : all_(std::move(all)), whole_(all_->units().size() + 1) {}
  /// A scope that is still open, because an observer has kept it, ends here. When it is destroyed, later than the run,
  /// it has nothing left to do to a model that was given back.
  ~FSDPParameters() override {
    for (const std::weak_ptr<WholeUnit>& unit : whole_)
      if (const auto whole = unit.lock()) whole->end();
  }

  std::vector<std::shared_ptr<WholeUnit>> make_whole(const ParameterSet& parameters, bool on_every_rank) override {
    std::vector<std::shared_ptr<WholeUnit>> made;
    for (int unit = -1; unit < int(all_->units().size()); ++unit) {
      if (!is_asked_for(flat(unit), parameters)) continue;
      if (!all_->is_at_rest())
        throw Error(ExitCode::user_code,
                    "full_parameters was opened while a forward or a backward runs: open it in a hook such as "
                    "on_train_step_end or on_validation_end.");
      UnitsInMemory& memory = all_->rest();
      made.push_back(share_whole(whole_[std::size_t(unit + 1)], on_every_rank, [&] {
        all_->set_whole(unit, true);
        auto whole = std::make_shared<WholeUnit>(on_every_rank, [all = all_, unit] { all->set_whole(unit, false); });
        if (memory.ranks().gathers(on_every_rank))
          for (const FlatSegment& segment : flat(unit).segments())
            whole->add(segment.tensors(), segment.layout(), segment.shard(), memory.ranks().shard);
        return whole;
      }));
    }
    return made;
  }

 private:
  const FlatUnit& flat(int unit) const { return unit < 0 ? all_->root() : all_->units()[std::size_t(unit)]; }

  static bool is_asked_for(const FlatUnit& unit, const ParameterSet& parameters) {
    return std::any_of(unit.segments().begin(), unit.segments().end(),
                       [&](const FlatSegment& segment) { return has_one_of(parameters, segment.tensors()); });
  }

  std::shared_ptr<ShardedUnits> all_;
  std::vector<std::weak_ptr<WholeUnit>> whole_;  // the root, then each unit
};

}  // namespace dovetail::detail
