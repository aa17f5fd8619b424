// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/unit_nodes.hpp>

#include <memory>
#include <utility>

namespace dovetail {

/// What every unit derives from, whatever module it is of: a strategy finds units by walking the built model.
class UnitBase {
 public:
  UnitBase() = default;
  UnitBase(const UnitBase& other) : recomputes_(other.recomputes_) {}  // a copy is another unit, which nobody runs yet
  UnitBase& operator=(const UnitBase& other) {
    recomputes_ = other.recomputes_;
    return *this;
  }
  virtual ~UnitBase() = default;

  /// Puts a strategy behind the unit, or takes it away with null.
  void attach(std::shared_ptr<UnitRuntime> runtime) { runtime_ = std::move(runtime); }
  bool is_attached() const { return runtime_ != nullptr; }

  /// Keeps nothing of a forward but its arguments, and computes the rest once more in backward (Chen et al., Training
  /// deep nets with sublinear memory cost, 2016): less memory for one forward more. Under every strategy; the second
  /// forward draws the same random numbers, runs under the same autocast, and gathers nothing. No second derivatives.
  void recompute_activations(bool on = true) { recomputes_ = on; }

  /// `gathers_low` of the module that this is a unit of.
  virtual bool gathers_low_itself() const = 0;

 protected:
  std::shared_ptr<UnitRuntime> runtime_;
  bool recomputes_ = false;
};

}  // namespace dovetail
