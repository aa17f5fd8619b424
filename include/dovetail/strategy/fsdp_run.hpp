// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/gradient_hooks.hpp>
#include <dovetail/shard/sharded_unit_runtime.hpp>
#include <dovetail/strategy/fsdp_building.hpp>
#include <dovetail/strategy/fsdp_plan.hpp>
#include <dovetail/strategy/fsdp_traffic.hpp>
#include <dovetail/strategy/fsdp_whole.hpp>

#include <map>
#include <memory>
#include <optional>

namespace dovetail {

/// FSDP in one run: cuts the parameters of every unit over the ranks, and lets the optimizer hold this rank's pieces.
///
/// Under a mixed precision the weights of modules for which `gathers_low` holds are gathered in the compute format, so
/// that autocast finds nothing to cast; pieces, their gradients and the optimizer's state stay in fp32. Parameters
/// that are frozen when the fit begins stay whole. What lies outside every unit is gathered for the whole step.
class FSDPRun : public StrategyBase {
 public:
  explicit FSDPRun(const FSDP& policy) : options_(policy.options) {}
  FSDPRun(const FSDPRun&) = delete;
  FSDPRun& operator=(const FSDPRun&) = delete;
  /// Where teardown did not come, an exception has ended the run. A run of one rank makes the model whole by itself; of
  /// several, nobody knows whether the others are still there to do it, so that the model stays cut and says so when it
  /// is read.
  ~FSDPRun() {
    detach();
    if (!all_ || whole_again_) return;
    try {
      alone_ ? all_->restore() : all_->abandon();
    } catch (const std::exception&) {  // out of memory: it stays cut
    }
  }

  void environment(StrategyContext& run) {
    check_options(options_, run.world_size());
    if (!options_.deferred_building) return;
    building_ = std::make_unique<detail::FSDPBuilding>(run, options_, connect(run));
  }

  void build_model(StrategyContext& run) {
    if (const auto building = std::move(building_))
      building->finish(plan_fsdp(*run.module, run.gradients.slots, options_, run.precision, run.world_size()));
  }

  void wrap_model(StrategyContext& run) {
    if (run.gradients.slots.empty()) collect_slots(run);
    const FSDPPlan plan = plan_fsdp(*run.module, run.gradients.slots, options_, run.precision, run.world_size());

    const UnitRanks& ranks = connect(run);
    std::vector<FlatUnit> units;
    for (const auto& unit : plan.units) units.emplace_back(unit.name);
    FlatUnit root;
    places_.resize(run.gradients.slots.size());
    auto shards = allocate(run, plan, false), mains = allocate(run, plan, true);
    for (const auto& [stored, main] : mains) mains_.push_back(main);
    for (const auto& segment : plan.segments) {
      FlatUnit& unit = segment.unit == UnitTree::root ? root : units[std::size_t(segment.unit)];
      add_segment(run, ranks.shard.rank(), unit, segment, shards[segment.stored], mains[segment.stored]);
    }

    if (!run.cut.empty())
      throw Error(ExitCode::user_code,
                  "parameters were frozen between the building of the model and its wrapping: with FSDP's "
                  "deferred_building that must be done in configure_model.");
    model_ = run.module;
    all_ = std::make_shared<ShardedUnits>(
        std::move(units), std::move(root), ranks,
        ShardedUnits::Options{bool(options_.reshard_after_forward), options_.prefetch, options_.max_gathered});
    for (std::size_t u = 0; u < plan.units.size(); ++u) {
      attached_.push_back(plan.units[u].unit);
      attached_.back()->attach(std::make_shared<ShardedUnitRuntime>(all_, int(u)));
    }
    alone_ = run.world_size() == 1;
    parameters_ = std::make_unique<detail::FSDPParameters>(all_);
    run.gradients.shard_group = ranks.shard.size();
  }

  /// wrap_model has given every slot its main gradient; autograd's hooks lie on the tensors, so that a change of
  /// dtype, as full_parameters makes it, does not lose them.
  void attach_gradients(StrategyContext& run) {
    for (std::size_t s = 0; s < places_.size(); ++s)
      hooks_.add(run.gradients.slots[s].model,
                 [place = places_[s], &slot = run.gradients.slots[s], &run](const torch::Tensor& gradient) {
                   if (run.in_training_step) refuse_touched(slot);
                   place.buffer->take(place.index, gradient);
                   slot.taken = true;
                 });
  }

  void before_forward(StrategyContext& run) {
    if (all_->is_whole()) detail::refuse_open_scope("a forward begins");
    const bool evaluates = !torch::GradMode::is_enabled();
    all_->begin_forward(evaluates, !evaluates && reduces_at_boundary() && run.micro_batch > 0);
  }

  /// After a forward without backward: ranks whose forward left units out take part in what the others need of them.
  /// Where it is not called the next forward, or teardown, makes up for it.
  void finish_forward(StrategyContext&) { all_->finish_forward(); }

  void before_backward(StrategyContext& run) {
    all_->begin_backward(!reduces_at_boundary() || run.at_boundary(), !reduces_at_boundary() && run.micro_batch > 0);
  }
  void after_backward(StrategyContext&) { all_->end_backward(); }
  void reduce(StrategyContext& run) {
    all_->finish_reductions();
    for (const torch::Tensor& main : mains_) ranks_->replicas.all_reduce_deterministic(main);
    run.gradients.summed = true;
  }
  void after_step(StrategyContext&) { all_->invalidate(); }

  void teardown(StrategyContext&) {
    if (!all_) return;
    const bool is_open = all_->is_whole();
    detach();
    all_->restore();
    whole_again_ = true;
    if (is_open) detail::refuse_open_scope("the fit ends");
  }

  /// A step whose forward calls each unit once, in the order of registration; the first step of a run agrees on that
  /// order and sends a little more.
  StepTraffic traffic(const StepShape& step) const { return detail::fsdp_traffic(options_, step); }

  /// For those who want to see what is gathered and when.
  const ShardedUnits& units() const { return *all_; }

  /// The most bytes of whole parameters, and of slices of them, that were there at once.
  std::size_t peak_gathered_bytes() const { return memory_.gathered->most_in_use(); }

 private:
  bool reduces_at_boundary() const { return options_.reduce == Reduce::at_boundary; }

  /// Before the model is there where it is cut while it is built.
  const UnitRanks& connect(const StrategyContext& run) {
    if (!ranks_) ranks_.emplace(run.comm, options_.group_sizes(run.world_size()));
    return *ranks_;
  }

  /// One buffer for the parts of all segments of a stored dtype, so that one pass of the optimizer steps all of them.
  static std::map<torch::ScalarType, torch::Tensor> allocate(const StrategyContext& run, const FSDPPlan& plan,
                                                             bool mains) {
    std::map<torch::ScalarType, int64_t> sizes;
    for (const auto& segment : plan.segments) sizes[segment.stored] += segment.layout.part_size();
    std::map<torch::ScalarType, torch::Tensor> buffers;
    for (const auto& [stored, size] : sizes)
      buffers[stored] = torch::zeros({size}, torch::dtype(mains ? main_dtype_of(stored) : stored).device(run.device));
    return buffers;
  }

  /// Cuts the next part off each buffer, makes the segment, and fills the slots.
  void add_segment(StrategyContext& run, int part, FlatUnit& unit, const FSDPPlan::Segment& plan, torch::Tensor& shards,
                   torch::Tensor& mains) {
    const int64_t size = plan.layout.part_size();
    const torch::Tensor shard = shards.narrow(0, 0, size), main = mains.narrow(0, 0, size);
    shards = shards.narrow(0, size, shards.numel() - size);
    mains = mains.narrow(0, size, mains.numel() - size);
    std::vector<torch::Tensor> tensors;
    std::vector<Slot*> slots;
    for (const std::size_t i : plan.slots) {
      slots.push_back(&run.gradients.slots[i]);
      tensors.push_back(slots.back()->model);
    }
    const bool filled = run.cut.move_part(tensors, shard);
    unit.segments().emplace_back(std::move(tensors), plan.layout, part, plan.gathered,
                                 plan.layout.parts() > 1 ? plan.reduced : main.scalar_type(), shard, main,
                                 describe(plan.unit == UnitTree::root, unit, slots), memory_, filled);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      Slot& slot = *slots[i];
      const Piece piece = plan.layout.piece(i, part);
      slot.held = shard.narrow(0, piece.offset, piece.numel).variable_data().requires_grad_(true);
      slot.stepped = slot.held;
      slot.main = main.narrow(0, piece.offset, piece.numel);
      slot.piece_begin = piece.begin;
      places_[plan.slots[i]] = {unit.segments().back().gradients(), i};
    }
  }

  static std::string describe(bool is_root, const FlatUnit& unit, const std::vector<Slot*>& slots) {
    return "the parameters " + names_of(slots) + (is_root ? " of the root unit" : " of unit '" + unit.name() + "'");
  }

  void detach() {
    for (UnitBase* unit : attached_) unit->attach(nullptr);
    attached_.clear();
    hooks_.clear();
    parameters_.reset();
    model_.reset();
  }

  /// Where the gradient of a slot goes.
  struct Place {
    std::shared_ptr<GradientBuffer> buffer;
    std::size_t index;
  };

  FSDP::Options options_;
  std::shared_ptr<torch::nn::Module> model_;  // keeps what is attached alive
  std::vector<UnitBase*> attached_;
  UnitMemory memory_;
  std::vector<torch::Tensor> mains_;  // of all segments, a buffer for each stored dtype
  std::optional<UnitRanks> ranks_;
  std::unique_ptr<detail::FSDPBuilding> building_;  // until the model is there
  std::shared_ptr<ShardedUnits> all_;
  std::vector<Place> places_;  // of each slot
  GradientHooks hooks_;
  std::unique_ptr<detail::FSDPParameters> parameters_;
  bool alone_ = true, whole_again_ = false;
};

template <>
struct RunOf<FSDP> {
  using type = FSDPRun;
};

}  // namespace dovetail
