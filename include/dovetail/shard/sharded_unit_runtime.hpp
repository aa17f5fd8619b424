// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/sharded_units.hpp>

#include <memory>
#include <utility>

namespace dovetail {

/// One unit's end of ShardedUnits.
class ShardedUnitRuntime final : public UnitRuntime {
 public:
  ShardedUnitRuntime(std::shared_ptr<ShardedUnits> all, int unit) : all_(std::move(all)), unit_(unit) {}
  int64_t begin() override { return all_->begin(unit_); }
  void end(bool thrown) noexcept override { all_->end(unit_, thrown); }
  void before_backward(int64_t pass) override { all_->before_backward(unit_, pass); }
  void after_backward(int64_t pass) override { all_->after_backward(unit_, pass); }

 private:
  std::shared_ptr<ShardedUnits> all_;
  int unit_;
};

}  // namespace dovetail
