// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/device.hpp>
#include <dovetail/launch/launch.hpp>
#include <dovetail/loop/check_epsilon.hpp>
#include <dovetail/loop/check_parameters.hpp>
#include <dovetail/loop/compare_models.hpp>
#include <dovetail/loop/compare_ranks.hpp>
#include <dovetail/loop/policy_hooks.hpp>
#include <dovetail/loop/task_adapter.hpp>
#include <dovetail/run/bind.hpp>
#include <dovetail/run/heap.hpp>

#include <torch/cuda.h>
#include <torch/utils.h>

namespace dovetail {

/// A seed for one rank's random stream: dropout masks differ between ranks and are the same on a second run.
inline uint64_t seed_of_rank(uint64_t seed, int rank) {
  uint64_t x = seed + 0x9E3779B97F4A7C15ULL * uint64_t(rank + 1);  // splitmix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// What the stages of set-up do by themselves; each then calls the policies' hooks of its name. In which order stages
/// come is not decided here: the trainer goes through setup_plan<Strategy, Precision>.
class SetUp {
 public:
  SetUp(RunContext& run, StrategyHooks& strategy, PrecisionHooks& precision, TaskCalls& task)
      : run_(run), strategy_(strategy), precision_(precision), task_(task) {}

  void stage(Stage stage) {
    switch (stage) {
      case Stage::environment:
        keep_freed_memory();
        run_.device = detail::run_device(run_.options.device, current_ranks());
        if (!run_.device.is_cpu()) c10::impl::VirtualGuardImpl(run_.device.type()).setDevice(run_.device);
        run_.comm = Communicator::connect(current_ranks(), {}, run_.device);
        run_.comm.set_deterministic(run_.options.deterministic);
        compare_options(run_);
        run_.losses = std::max(1, task_.losses());
        torch::manual_seed(run_.options.seed);  // the same weights on every rank
        break;
      case Stage::build_model:
        run_.module = task_.build_model();
        collect_slots(run_);
        check_memory(*run_.module);
        compare_models(run_);
        break;
      case Stage::place_model:
        run_.cut.move_to(run_.device);
        run_.module->to(run_.device);
        break;
      case Stage::make_optimizers:
        // A strategy that delays optimizers has said in wrap_model what they may hold.
        if (!run_.strategy.delays_optimizer_setup) hold_whole_parameters(run_);
        check_trainable(run_);
        list_parameters();
        run_.optimizers = task_.configure_optimizers(run_.held);  // once per fit, and nowhere else
        run_.optimizers.check_holds_only(run_.held);
        compare_optimizers(run_);
        break;
      case Stage::bind_schedulers:
        run_.optimizers.bind_schedules();
        break;
      case Stage::convert_model:
      case Stage::wrap_model:
      case Stage::rebuild_optimizers:
      case Stage::wrap_optimizers:
      case Stage::restore:
        break;
    }
    strategy_.stage(stage, run_);
    precision_.stage(stage, run_);
    if (stage == Stage::rebuild_optimizers) list_parameters();  // pieces now; who is asked for whole ones lets them go
  }

  /// After the last stage.
  void finish() {
    check_epsilon(run_.optimizers);
    strategy_.attach_gradients(run_);
    // What an earlier fit or the user's own backward left behind must not enter the first step.
    for (Slot& slot : run_.gradients.slots)
      if (!slot.main.defined()) slot.model.mutable_grad().reset();
    bind_gradients(run_);
    torch::manual_seed(seed_of_rank(run_.options.seed, run_.rank()));
  }

 private:
  /// What optimizers may hold.
  void list_parameters() {
    std::vector<Parameter> list;
    for (const Slot& slot : run_.gradients.slots) list.push_back({slot.name, slot.shape, slot.held});
    run_.held = Parameters(std::move(list));
  }

  RunContext& run_;
  StrategyHooks& strategy_;
  PrecisionHooks& precision_;
  TaskCalls& task_;
};

}  // namespace dovetail
