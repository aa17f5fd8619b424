// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/dense.hpp>
#include <dovetail/shard/unit_tree.hpp>
#include <dovetail/strategy/fsdp_checks.hpp>
#include <dovetail/strategy/reduce_dtype.hpp>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace dovetail {

/// How FSDP cuts a model: which units are gathered and freed, and what lies in each. Numbers only: nothing is moved.
struct FSDPPlan {
  /// Parameters of one unit, of one stored dtype, gathered in one dtype. In order of units, the root first.
  struct Segment {
    int unit;                                     ///< UnitTree::root for what stays gathered for the whole step
    torch::ScalarType stored, gathered, reduced;  ///< the latter: as gradients are sent
    std::vector<std::size_t> slots;
    FlatLayout layout;
  };
  struct Unit {
    UnitBase* unit;
    std::string name;
  };

  std::vector<Unit> units;  ///< without those that are too small
  std::vector<Segment> segments;
};

namespace detail {

/// Which units are too small to be gathered and freed; the root has them.
class KeptUnits {
 public:
  explicit KeptUnits(int64_t keep_below) : keep_below_(keep_below) {}

  /// The next unit, of so many elements.
  bool keeps(int64_t elements) {
    const bool keeps = elements < keep_below_ && kept_ + elements <= 16 * keep_below_;
    if (keeps) kept_ += elements;
    return keeps;
  }

 private:
  int64_t keep_below_, kept_ = 0;
};

/// The number of each unit of the tree; small ones are part of the root.
inline std::vector<int> number_units(const std::vector<Slot>& slots, const UnitTree& tree, int64_t keep_below) {
  std::vector<int64_t> elements(tree.units().size(), 0);
  for (const Slot& slot : slots)
    if (const int unit = tree.owner(slot.model).unit; unit != UnitTree::root)
      elements[std::size_t(unit)] += slot.model.numel();
  std::vector<int> numbers;
  KeptUnits kept(keep_below);
  int next = 0;
  for (const int64_t count : elements) numbers.push_back(kept.keeps(count) ? UnitTree::root : next++);
  return numbers;
}

/// The compute format of a mixed precision.
inline std::optional<torch::ScalarType> low_format(const PrecisionTraits& precision) {
  if (precision.storage != Format::fp32) return std::nullopt;
  if (precision.compute == Format::bf16) return torch::kBFloat16;
  if (precision.compute == Format::fp16) return torch::kFloat16;
  return std::nullopt;
}

}  // namespace detail

/// @param ranks  of the run; parts are those of one shard group
/// @throws Error(user_code) for a parameter that is not dense, Error(arguments) for options that mean nothing
inline FSDPPlan plan_fsdp(torch::nn::Module& model, const std::vector<Slot>& slots, const FSDP::Options& options,
                          const PrecisionTraits& precision, int ranks) {
  check_options(options, ranks);
  const UnitTree tree(model);
  const std::vector<int> numbers = detail::number_units(slots, tree, options.keep_below);
  FSDPPlan plan;
  for (std::size_t u = 0; u < numbers.size(); ++u)
    if (numbers[u] != UnitTree::root) plan.units.push_back({tree.units()[u].unit, tree.units()[u].name});

  const int parts = options.group_sizes(ranks).shard;
  const auto low = detail::low_format(precision);
  std::map<std::tuple<int, torch::ScalarType, torch::ScalarType>, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    require_dense(slots[i]);
    const auto owner = tree.owner(slots[i].model);
    const int unit = owner.unit == UnitTree::root ? UnitTree::root : numbers[std::size_t(owner.unit)];
    const auto stored = slots[i].model.scalar_type();
    groups[{unit, stored, low && owner.low && stored == torch::kFloat32 ? *low : stored}].push_back(i);
  }
  for (auto& [key, members] : groups) {
    std::vector<int64_t> numels;
    for (const std::size_t i : members) numels.push_back(slots[i].model.numel());
    const auto [unit, stored, gathered] = key;
    const auto reduced = reduce_dtype(slots[members.front()], options.reduce_format, "FSDP");
    plan.segments.push_back({unit, stored, gathered, reduced, std::move(members), FlatLayout(numels, parts)});
  }
  return plan;
}

}  // namespace dovetail
