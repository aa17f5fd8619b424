// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <utility>

namespace dovetail::detail {

/// Hears of every unit that is constructed on its thread while it lives: once the unit's module is complete and filled.
class UnitBuilder {
 public:
  UnitBuilder() : before_(std::exchange(current(), this)) {}
  UnitBuilder(const UnitBuilder&) = delete;
  UnitBuilder& operator=(const UnitBuilder&) = delete;
  virtual ~UnitBuilder() { current() = before_; }

  static UnitBuilder*& current() {
    thread_local UnitBuilder* current = nullptr;
    return current;
  }

  /// Units inside of this one have been there before.
  virtual void built(torch::nn::Module& unit) = 0;

 private:
  UnitBuilder* before_;
};

/// The last member of a unit to be constructed. That of a copy says nothing.
struct TellsBuilder {
  explicit TellsBuilder(torch::nn::Module& unit) {
    if (UnitBuilder* builder = UnitBuilder::current()) builder->built(unit);
  }
};

}  // namespace dovetail::detail
