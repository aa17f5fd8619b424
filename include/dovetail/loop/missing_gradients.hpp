// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/loop/agreement.hpp>
#include <dovetail/run/dense.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace dovetail {

/// Refuses a training_step that runs backward by itself. Strategies that take gradients by hooks refuse them there
/// (RunContext::in_training_step); this looks at what autograd keeps, or adds into.
class UntouchedGradients {
 public:
  /// To be called when set-up is over.
  void prepare(const RunContext& run) {
    const auto& slots = run.gradients.slots;
    looks_ = std::any_of(slots.begin(), slots.end(), [](const Slot& slot) { return is_kept(slot); });
  }

  void before_training_step(const RunContext& run) {
    stamps_.clear();
    if (!looks_) return;
    for (const Slot& slot : run.gradients.slots) stamps_.push_back(stamp(slot));
  }

  /// @throws Error(user_code)
  void after_training_step(const RunContext& run) const {
    for (std::size_t i = 0; i < stamps_.size(); ++i)
      if (const Slot& slot = run.gradients.slots[i]; stamp(slot) != stamps_[i]) refuse_touched(slot);
  }

 private:
  static bool is_kept(const Slot& slot) { return slot.arrivals.defined() || !slot.main.defined(); }

  /// Another one where a gradient came.
  static int64_t stamp(const Slot& slot) {
    if (!is_kept(slot)) return 0;
    const torch::Tensor& gradient = slot.arrivals.defined() ? slot.arrivals : slot.model.grad();
    return gradient.defined() ? 1 + int64_t(gradient._version()) : 0;
  }

  bool looks_ = false;
  std::vector<int64_t> stamps_;  // of each slot
};

/// Once all ranks know that what is frozen differs between them: names the first parameter. A collective.
/// @throws Error(ranks_disagree)
[[noreturn]] inline void refuse_other_frozen(RunContext& run) {
  std::vector<double> mine;
  for (const Slot& slot : run.gradients.slots) mine.push_back(double(slot.frozen));
  const auto all = run.comm.all_gather(mine);
  const auto frozen = [&](int rank, std::size_t i) { return all[std::size_t(rank) * mine.size() + i]; };
  for (std::size_t i = 0; i < mine.size(); ++i) {
    std::string frozen_on, others;
    double most = frozen(0, i), least = most;
    for (int r = 0; r < run.world_size(); ++r) {
      most = std::max(most, frozen(r, i));
      least = std::min(least, frozen(r, i));
    }
    if (most == least) continue;
    for (int r = 0; r < run.world_size(); ++r) {
      std::string& list = frozen(r, i) == most ? frozen_on : others;
      list += (list.empty() ? "rank " : ", rank ") + std::to_string(r);
    }
    throw Error(ExitCode::ranks_disagree, "the parameter '" + run.gradients.slots[i].name + "' is frozen on " +
                                              frozen_on + " and not on " + others + " at step " +
                                              std::to_string(run.steps_taken) +
                                              ": change requires_grad alike on all ranks.");
  }
  throw Error(ExitCode::ranks_disagree, "ranks have frozen other parameters at step " +
                                            std::to_string(run.steps_taken) + ": change requires_grad alike on all.");
}

/// Parameters that got no gradient in a window. One that was frozen is left alone by the optimizer. Any other is an
/// error that names it, without `find_unused`; with it, a parameter that is missing on every rank is left alone too,
/// and one that is missing on some ranks counts as zero there.
class MissingGradients {
 public:
  /// @param some_missing  on some rank, as all ranks know
  void hide(RunContext& run, Agreement& agreement, bool some_missing) {
    std::vector<int> missing_on;
    if (some_missing) {
      missing_on = agreement.missing_ranks(run);
      refuse_replaced(run);
      if (!run.options.find_unused) refuse(run, missing_on);
    }
    for (std::size_t i = 0; i < run.gradients.slots.size(); ++i) {
      Slot& slot = run.gradients.slots[i];
      if (!slot.rests && (!some_missing || missing_on[i] < run.world_size())) continue;
      // Where autograd keeps the gradient it is undefined already, which optimizers skip by themselves.
      if (!slot.main.defined() || !slot.stepped.grad().defined()) continue;
      hidden_.emplace_back(i, std::exchange(slot.stepped.mutable_grad(), torch::Tensor()));
    }
  }

  /// After the step: autograd must find its buffers again.
  void show(RunContext& run) {
    for (auto& [i, gradient] : hidden_) run.gradients.slots[i].stepped.mutable_grad() = std::move(gradient);
    hidden_.clear();
  }

 private:
  static void refuse_replaced(const RunContext& run) {
    for (const Slot& slot : run.gradients.slots)
      if (slot.arrivals.defined() && !slot.model.grad().is_same(slot.arrivals))
        throw Error(ExitCode::user_code, "the gradient of the parameter '" + slot.name +
                                             "' was taken away or replaced: leave zero_grad to the run, which keeps "
                                             "gradients in buffers of its own.");
  }

  [[noreturn]] static void refuse(const RunContext& run, const std::vector<int>& missing_on) {
    std::string names;
    int listed = 0;
    bool everywhere = true;
    for (std::size_t i = 0; i < missing_on.size(); ++i) {
      if (missing_on[i] == 0) continue;
      everywhere &= missing_on[i] == run.world_size();
      if (listed++ < 5) names += (names.empty() ? "'" : ", '") + run.gradients.slots[i].name + "'";
    }
    if (listed > 5) names += " and " + std::to_string(listed - 5) + " more";
    throw Error(ExitCode::user_code,
                std::string(listed == 1 ? "the parameter " : "the parameters ") + names + " got no gradient " +
                    (everywhere ? "" : "on some ranks ") + "at step " + std::to_string(run.steps_taken) +
                    ": use them in the loss, freeze them with requires_grad_(false), or set .find_unused = true. "
                    "(One module's weight assigned to another leaves the old one registered and unused.)");
  }

  std::vector<std::pair<std::size_t, torch::Tensor>>
      hidden_;  // slot, and the gradient taken from its optimizer's tensor
};

}  // namespace dovetail
