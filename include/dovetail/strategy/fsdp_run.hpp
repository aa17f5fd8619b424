// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/dense.hpp>
#include <dovetail/shard/sharded_unit_runtime.hpp>
#include <dovetail/shard/unit_tree.hpp>
#include <dovetail/strategy/fsdp.hpp>

#include <map>
#include <memory>

namespace dovetail {

/// FSDP in one run: cuts the parameters of every unit over the ranks, and lets the optimizer hold this rank's pieces.
///
/// Under a mixed precision the weights of modules for which `gathers_low` holds are gathered in the compute format, so
/// that autocast finds nothing to cast; pieces, their gradients and the optimizer's state stay in fp32. Frozen
/// parameters stay whole. What lies outside every unit is gathered for the whole step.
class FSDPRun : public StrategyBase {
 public:
  explicit FSDPRun(const FSDP& policy) : options_{policy.options.reshard_after_forward, policy.options.prefetch} {}
  FSDPRun(const FSDPRun&) = delete;
  FSDPRun& operator=(const FSDPRun&) = delete;
  ~FSDPRun() { detach(); }

  void environment(StrategyContext&) {
    if (options_.prefetch < 0) throw Error(ExitCode::arguments, "FSDP's prefetch is negative: it must be at least 0.");
  }

  void wrap_model(StrategyContext& run) {
    if (run.gradients.slots.empty()) collect_slots(run);
    const UnitTree tree(*run.module);
    const std::vector<Plan> plans = plan(run, tree);

    std::vector<FlatUnit> units;
    for (const auto& found : tree.units()) units.emplace_back(found.name);
    FlatUnit root;
    auto shards = allocate(run, plans, false), mains = allocate(run, plans, true);
    for (const Plan& one : plans) {
      FlatUnit& unit = one.unit == UnitTree::root ? root : units[std::size_t(one.unit)];
      add_segment(run, unit, one, shards[one.stored], mains[one.stored]);
    }

    model_ = run.module;
    all_ = std::make_shared<ShardedUnits>(std::move(units), std::move(root), run.comm, options_);
    for (std::size_t u = 0; u < tree.units().size(); ++u) {
      attached_.push_back(tree.units()[u].unit);
      attached_.back()->attach(std::make_shared<ShardedUnitRuntime>(all_, int(u)));
    }
    run.gradients.parts = run.world_size() > 1;
  }

  void attach_gradients(StrategyContext&) {}  // wrap_model has given every slot its main gradient

  void before_forward(StrategyContext&) { all_->begin_forward(!torch::GradMode::is_enabled()); }

  /// After a forward without backward: ranks whose forward left units out take part in what the others need of them.
  /// Where it is not called the next forward, or teardown, makes up for it.
  void finish_forward(StrategyContext&) { all_->finish_forward(); }

  void before_backward(StrategyContext& run) { all_->begin_backward(run.micro_batch > 0); }
  void after_backward(StrategyContext&) { all_->end_backward(); }
  void reduce(StrategyContext& run) { run.gradients.summed = true; }
  void after_step(StrategyContext&) { all_->invalidate(); }

  void teardown(StrategyContext&) {
    if (!all_) return;
    detach();
    all_->restore();
  }

  /// For those who want to see what is gathered and when.
  const ShardedUnits& units() const { return *all_; }

 private:
  /// What becomes one segment: parameters of one unit, of one stored dtype, gathered in one dtype.
  struct Plan {
    int unit;
    torch::ScalarType stored, gathered;
    std::vector<Slot*> slots;
    FlatLayout layout;
  };

  static std::vector<Plan> plan(StrategyContext& run, const UnitTree& tree) {
    const auto low = low_format(run);
    std::map<std::tuple<int, torch::ScalarType, torch::ScalarType>, std::vector<Slot*>> groups;
    for (Slot& slot : run.gradients.slots) {
      require_dense(slot);
      const auto owner = tree.owner(slot.model);
      const auto stored = slot.model.scalar_type();
      const auto gathered = low && owner.low && stored == torch::kFloat32 ? *low : stored;
      groups[{owner.unit, stored, gathered}].push_back(&slot);
    }
    std::vector<Plan> plans;
    for (auto& [key, slots] : groups) {
      std::vector<int64_t> numels;
      for (const Slot* slot : slots) numels.push_back(slot->model.numel());
      FlatLayout layout(numels, run.world_size());
      plans.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), std::move(slots), std::move(layout)});
    }
    return plans;
  }

  /// The compute format of a mixed precision.
  static std::optional<torch::ScalarType> low_format(const StrategyContext& run) {
    if (run.precision.storage != Format::fp32) return std::nullopt;
    if (run.precision.compute == Format::bf16) return torch::kBFloat16;
    if (run.precision.compute == Format::fp16) return torch::kFloat16;
    return std::nullopt;
  }

  /// One buffer for the parts of all segments of a stored dtype, so that one pass of the optimizer steps all of them.
  static std::map<torch::ScalarType, torch::Tensor> allocate(const StrategyContext& run, const std::vector<Plan>& plans,
                                                             bool mains) {
    std::map<torch::ScalarType, int64_t> sizes;
    for (const Plan& one : plans) sizes[one.stored] += one.layout.part_size();
    std::map<torch::ScalarType, torch::Tensor> buffers;
    for (const auto& [stored, size] : sizes)
      buffers[stored] = torch::zeros({size}, torch::dtype(mains ? main_dtype_of(stored) : stored).device(run.device));
    return buffers;
  }

  /// Cuts the next part off each buffer, makes the segment, and fills the slots.
  static void add_segment(StrategyContext& run, FlatUnit& unit, const Plan& plan, torch::Tensor& shards,
                          torch::Tensor& mains) {
    const int64_t size = plan.layout.part_size();
    const torch::Tensor shard = shards.narrow(0, 0, size), main = mains.narrow(0, 0, size);
    shards = shards.narrow(0, size, shards.numel() - size);
    mains = mains.narrow(0, size, mains.numel() - size);
    std::vector<torch::Tensor> tensors;
    for (const Slot* slot : plan.slots) tensors.push_back(slot->model);
    unit.segments().emplace_back(std::move(tensors), plan.layout, run.rank(), plan.gathered, shard, main,
                                 describe(unit, plan));
    for (std::size_t i = 0; i < plan.slots.size(); ++i) {
      Slot& slot = *plan.slots[i];
      const Piece piece = plan.layout.piece(i, run.rank());
      slot.held = shard.narrow(0, piece.offset, piece.numel).variable_data().requires_grad_(true);
      slot.stepped = slot.held;
      slot.main = main.narrow(0, piece.offset, piece.numel);
      slot.arrivals = slot.model.grad();
      slot.piece_begin = piece.begin;
    }
  }

  static std::string describe(const FlatUnit& unit, const Plan& plan) {
    std::string names;
    for (std::size_t i = 0; i < std::min<std::size_t>(plan.slots.size(), 4); ++i)
      names += (i == 0 ? "'" : ", '") + plan.slots[i]->name + "'";
    if (plan.slots.size() > 4) names += " and " + std::to_string(plan.slots.size() - 4) + " more";
    return "the parameters " + names + (unit.name().empty() ? " of the root unit" : " of unit '" + unit.name() + "'");
  }

  void detach() {
    for (UnitBase* unit : attached_) unit->attach(nullptr);
    attached_.clear();
    model_.reset();
  }

  ShardedUnits::Options options_;
  std::shared_ptr<torch::nn::Module> model_;  // keeps what is attached alive
  std::vector<UnitBase*> attached_;
  std::shared_ptr<ShardedUnits> all_;
};

template <>
struct RunOf<FSDP> {
  using type = FSDPRun;
};

}  // namespace dovetail
