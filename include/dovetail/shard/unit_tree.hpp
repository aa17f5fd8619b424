// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/unit.hpp>

#include <string>
#include <unordered_map>
#include <vector>

namespace dovetail {

/// The units of a built model, in the order in which a walk from the root meets them, and which unit each parameter is
/// of.
class UnitTree {
 public:
  static constexpr int root = -1;  ///< what lies outside every unit

  struct Found {
    UnitBase* unit;
    std::string name;  ///< path of the module; the first where it is registered twice
  };
  struct Owner {
    int unit = root;
    bool low = false;  ///< every module that registers it gathers low
  };

  explicit UnitTree(torch::nn::Module& model) { walk(model, "", root); }

  const std::vector<Found>& units() const { return units_; }

  /// The innermost unit above a parameter. One that several units register is the root's, which is there whenever any
  /// runs.
  Owner owner(const torch::Tensor& parameter) const {
    const auto found = owners_.find(parameter.unsafeGetTensorImpl());
    return found == owners_.end() ? Owner{} : found->second;
  }

 private:
  void walk(torch::nn::Module& module, const std::string& path, int innermost) {
    bool low = detail::gathers_low_at_run_time(module);
    if (auto* unit = dynamic_cast<UnitBase*>(&module)) {
      innermost = number_of(*unit, path);
      low = low || unit->gathers_low_itself();
    }
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      const auto [found, first] = owners_.try_emplace(item.value().unsafeGetTensorImpl(), Owner{innermost, low});
      if (first) continue;
      if (found->second.unit != innermost) found->second.unit = root;
      found->second.low = found->second.low && low;
    }
    for (const auto& child : module.named_children())
      walk(*child.value(), path.empty() ? child.key() : path + "." + child.key(), innermost);
  }

  int number_of(UnitBase& unit, const std::string& path) {
    for (std::size_t i = 0; i < units_.size(); ++i)
      if (units_[i].unit == &unit) return int(i);
    units_.push_back({&unit, path});
    return int(units_.size()) - 1;
  }

  std::vector<Found> units_;
  std::unordered_map<c10::TensorImpl*, Owner> owners_;
};

}  // namespace dovetail
