// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/fingerprint.hpp>
#include <dovetail/optim/each_option.hpp>
#include <dovetail/run/bind.hpp>

#include <bit>
#include <cstdint>
#include <vector>

namespace dovetail {

/// Parameter groups that are added to optimizers while training goes on: by `OptimizerEntry::add_param_group`, or by
/// the optimizer's own. Looked for before each window; what is found is stepped from the next step on as if it had been
/// there: by its masters, in this rank's pieces, with its main gradients, in norms and under its optimizer's schedule.
///
/// What may be added are parameters that are trained, so require a gradient since the fit began, and that no optimizer
/// holds: until then they get gradients, and nobody steps them.
class AddedGroups {
 public:
  /// Set-up is over.
  void begin(const RunContext& run) { note_sizes(run); }

  /// @return was anything added, or taken away?
  /// @throws Error(user_code) for a tensor that may not be added
  bool take_in(RunContext& run) {
    if (as_noted(run)) return false;
    for (std::size_t k = 0; k < sizes_.size(); ++k)
      if (run.optimizers[k].traits().requires_closure && run.optimizers[k].held() != sizes_[k])
        throw Error(ExitCode::user_code, run.optimizers[k].type() +
                                             " was given a group while training goes on: an optimizer that evaluates "
                                             "the loss by itself steps those it was made with.");
    hand_over(run);
    std::vector<Parameter> may_be_held;
    for (const Slot& slot : run.gradients.slots) may_be_held.push_back({slot.name, slot.shape, slot.stepped});
    run.optimizers.check_holds_only(Parameters(std::move(may_be_held)));
    run.gradients.finish(run.optimizers.size());
    run.optimizers.rebind();
    for (OptimizerEntry& optimizer : run.optimizers)
      if (optimizer.schedule()) optimizer.schedule()->groups_added();
    note_sizes(run);
    fingerprint_ = fingerprint(run);
    return true;
  }

  /// A number that differs where ranks have added different groups; 0 where nothing was added.
  double fingerprint() const { return double(fingerprint_); }

 private:
  bool as_noted(const RunContext& run) const {
    for (std::size_t k = 0; k < sizes_.size(); ++k)
      if (run.optimizers[k].held() != sizes_[k]) return false;
    return true;
  }

  void note_sizes(const RunContext& run) {
    sizes_.clear();
    for (std::size_t k = 0; k < run.optimizers.size(); ++k) sizes_.push_back(run.optimizers[k].held());
  }

  /// Of who steps what with which options.
  static uint64_t fingerprint(const RunContext& run) {
    Fingerprint all;
    for (const Slot& slot : run.gradients.slots) all.add(uint64_t(slot.optimizer + 1));
    for (std::size_t k = 0; k < run.optimizers.size(); ++k)
      for (const auto& group : std::as_const(run.optimizers[k].base()).param_groups())
        each_option(group.options(), [&](std::string_view, double value) { all.add(std::bit_cast<uint64_t>(value)); });
    return all.value();
  }

  std::vector<std::size_t> sizes_;
  uint64_t fingerprint_ = 0;
};

}  // namespace dovetail
