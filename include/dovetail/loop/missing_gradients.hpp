// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/loop/agreement.hpp>

#include <string>
#include <vector>

namespace dovetail {

/// Refuses a training_step that runs backward by itself: its gradients would count twice.
/// @throws Error(user_code)
inline void check_untouched(const RunContext& run) {
  for (const Slot& slot : run.gradients.slots) {
    const bool arrived =
        slot.arrivals.defined()
            ? slot.arrivals.unsafeGetTensorImpl()->version_counter().current_version() != slot.seen_version
            : !slot.main.defined() && slot.model.grad().defined();
    if (arrived)
      throw Error(ExitCode::user_code,
                  "the parameter '" + slot.name +
                      "' has a gradient before the run's own backward: training_step must return "
                      "the loss and leave backward, zero_grad and the optimizer's step to the run.");
  }
}

/// Parameters that got no gradient in a window. Without `find_unused` an error that names them; with it, a parameter
/// that is missing on every rank is skipped by the optimizer, and one that is missing on some ranks counts as zero
/// there.
class MissingGradients {
 public:
  /// Once all ranks know that some parameter is missing somewhere.
  void hide(RunContext& run, Agreement& agreement) {
    const std::vector<int> missing_on = agreement.missing_ranks(run);
    for (const Slot& slot : run.gradients.slots)
      if (slot.arrivals.defined() && !slot.model.grad().is_same(slot.arrivals))
        throw Error(ExitCode::user_code, "the gradient of the parameter '" + slot.name +
                                             "' was taken away or replaced: leave zero_grad to the run, which keeps "
                                             "gradients in buffers of its own.");
    if (!run.options.find_unused) refuse(run, missing_on);
    for (std::size_t i = 0; i < missing_on.size(); ++i) {
      Slot& slot = run.gradients.slots[i];
      // Where autograd keeps the gradient it is undefined already, which optimizers skip by themselves.
      if (missing_on[i] < run.world_size() || !slot.main.defined() || !slot.stepped.grad().defined()) continue;
      hidden_.emplace_back(i, slot.stepped.grad());
      slot.stepped.mutable_grad().reset();
    }
    if (!hidden_.empty()) run.optimizers.rebind();
  }

  /// After the step: autograd must find its buffers again.
  void show(RunContext& run) {
    if (hidden_.empty()) return;
    for (auto& [i, gradient] : hidden_) run.gradients.slots[i].stepped.mutable_grad() = std::move(gradient);
    hidden_.clear();
    run.optimizers.rebind();
  }

 private:
  [[noreturn]] static void refuse(const RunContext& run, const std::vector<int>& missing_on) {
    std::string names;
    int listed = 0;
    bool everywhere = true, frozen = false;
    for (std::size_t i = 0; i < missing_on.size(); ++i) {
      if (missing_on[i] == 0) continue;
      everywhere &= missing_on[i] == run.world_size();
      frozen |= !run.gradients.slots[i].model.requires_grad();
      if (listed++ < 5) names += (names.empty() ? "'" : ", '") + run.gradients.slots[i].name + "'";
    }
    if (listed > 5) names += " and " + std::to_string(listed - 5) + " more";
    throw Error(
        ExitCode::user_code,
        std::string(listed == 1 ? "the parameter " : "the parameters ") + names + " got no gradient " +
            (everywhere ? "" : "on some ranks ") + "at step " + std::to_string(run.steps_taken) +
            (frozen ? ": what is frozen while training goes on needs .find_unused = true."
                    : ": use them in the loss, freeze them with requires_grad_(false) in configure_model, or set "
                      ".find_unused = true. (One module's weight assigned to another leaves the old one "
                      "registered and unused.)"));
  }

  std::vector<std::pair<std::size_t, torch::Tensor>>
      hidden_;  // slot, and the gradient taken from its optimizer's tensor
};

}  // namespace dovetail
