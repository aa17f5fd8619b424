// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/compare_lines.hpp>
#include <dovetail/shard/full_parameters.hpp>
#include <dovetail/shard/unit_builder.hpp>
#include <dovetail/shard/unit_ranks.hpp>
#include <dovetail/strategy/fsdp_plan.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dovetail::detail {

/// Deferred building. While it lives each unit is cut as soon as it has been constructed: with the layout that the plan
/// for the whole model will have, so that wrapping finds every part in its place. A unit whose parameters do not end up
/// as they seemed to (frozen, tied, or registered elsewhere too, later on) is made whole again at the end, and cut as
/// if it had been built without this. Units that are to stay gathered are left alone.
class FSDPBuilding final : public UnitBuilder, public ParameterHolder {
 public:
  FSDPBuilding(RunContext& run, const FSDP::Options& options, UnitRanks ranks)
      : run_(run), ranks_(std::move(ranks)), options_(options), kept_(options.keep_below) {
    options_.keep_below = 0;
  }

  void built(torch::nn::Module& unit) override {
    std::vector<Slot> slots = slots_of(unit);
    std::erase_if(slots, [&](const Slot& slot) { return run_.cut.find(slot.model).has_value(); });
    const FSDPPlan plan = plan_fsdp(unit, slots, options_, run_.precision, run_.world_size());
    std::vector<const FSDPPlan::Segment*> own;  // the walk meets the unit itself first
    int64_t elements = 0;
    for (const FSDPPlan::Segment& segment : plan.segments) {
      if (segment.unit != 0) continue;
      own.push_back(&segment);
      for (const std::size_t i : segment.slots) elements += slots[i].model.numel();
    }
    if (elements == 0 || kept_.keeps(elements)) return;
    for (const FSDPPlan::Segment* segment : own) {
      std::vector<torch::Tensor> tensors;
      std::vector<const Slot*> named;
      for (const std::size_t i : segment->slots) {
        named.push_back(&slots[i]);
        tensors.push_back(slots[i].model);
      }
      run_.cut.add(std::make_unique<CutGroup>(
          std::move(tensors), segment->layout, ranks_.shard.rank(),
          "the parameters " + names_of(named) +
              " of a unit are read after deferred_building has cut them. Fill them in the constructor of the module, "
              "or in a scope of full_parameters(*unit)."));
    }
  }

  std::vector<std::shared_ptr<WholeUnit>> make_whole(const ParameterSet& parameters, bool on_every_rank) override {
    std::string asked_for =
        "a scope of full_parameters in configure_model, after " + std::to_string(run_.cut.groups().size()) + " units\n";
    std::vector<CutGroup*> groups;
    for (const auto& group : run_.cut.groups())
      if (has_one_of(parameters, group->tensors())) {
        groups.push_back(group.get());
        asked_for += group->text() + "\n";
      }
    compare_lines(ranks_.all, asked_for, "constructed other units than",
                  "configure_model must construct the same units, and open the same scopes, on every rank.");
    std::vector<std::shared_ptr<WholeUnit>> made;
    for (CutGroup* group : groups)
      made.push_back(share_whole(group->whole(), on_every_rank, [&] {
        auto whole = std::make_shared<WholeUnit>(on_every_rank);
        if (ranks_.gathers(on_every_rank)) whole->add(group->tensors(), group->layout(), group->part(), ranks_.shard);
        return whole;
      }));
    return made;
  }

  void written(const ParameterSet& parameters) override {
    for (const auto& group : run_.cut.groups())
      if (has_one_of(parameters, group->tensors())) group->note_sums();
  }

  /// The model is complete: makes whole what the plan cuts in another way.
  /// @throws Error(user_code) where a scope of full_parameters is open
  void finish(const FSDPPlan& plan) {
    for (const auto& group : run_.cut.groups())
      if (!group->whole().expired())
        throw Error(ExitCode::user_code,
                    "a scope of full_parameters is still open when configure_model has ended: let it end there.");
    run_.cut.restore_unless(ranks_.shard, [&](const CutGroup& group) { return is_in(plan, group); });
  }

 private:
  bool is_in(const FSDPPlan& plan, const CutGroup& group) const {
    const auto same = [&](std::size_t slot, const torch::Tensor& tensor) {
      return run_.gradients.slots[slot].model.is_same(tensor);
    };
    const auto has_group = [&](const FSDPPlan::Segment& segment) {
      return std::equal(segment.slots.begin(), segment.slots.end(), group.tensors().begin(), group.tensors().end(),
                        same);
    };
    const auto found = std::find_if(plan.segments.begin(), plan.segments.end(), has_group);
    if (found == plan.segments.end()) return false;
    // A cast of the model makes one segment of those that differ in dtype.
    const auto of_unit = std::count_if(plan.segments.begin(), plan.segments.end(),
                                       [&](const FSDPPlan::Segment& other) { return other.unit == found->unit; });
    return of_unit == 1 || run_.precision.storage == Format::fp32;
  }

  RunContext& run_;
  UnitRanks ranks_;
  FSDP::Options options_;
  KeptUnits kept_;
};

}  // namespace dovetail::detail
