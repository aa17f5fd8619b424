// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/number_gather.hpp>
#include <dovetail/run/agreed_numbers.hpp>
#include <dovetail/run/context.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace dovetail {

/// What one rank knows at the end of a window, and after the agreement what all know together: the same on every rank.
struct StepFacts {
  double samples = 0;                 ///< weight of the window's batches
  double loss = 0;                    ///< sum of loss x weight
  double missing = 0;                 ///< parameters that got no gradient
  int nan_rank = -1;                  ///< the first rank whose loss is NaN; before it this rank's or -1
  int infinite_rank = -1;             ///< the same for an infinite loss
  int stop_rank = -1;                 ///< the first rank that wants to stop before this step
  bool other_frozen = false;          ///< after it: has some rank frozen other parameters?
  double groups = 0;                  ///< AddedGroups' fingerprint, of this rank
  std::vector<double> squared_norms;  ///< of each optimizer's gradients, undivided; empty where nobody needs them
  std::vector<double> overflows;      ///< of each loss, above 0: it did; empty but where each has a scaler, or the
                                      ///< scale moves at every backward
};

/// One small collective for everything that must be agreed at a step; none with one rank. Sums are in rank order.
class Agreement {
 public:
  void start(RunContext& run, const StepFacts& facts) {
    if (run.world_size() == 1) return;
    const AgreedNumbers mine{.samples = facts.samples,
                             .loss = facts.loss,
                             .missing = facts.missing,
                             .nan = double(facts.nan_rank >= 0),
                             .infinite = double(facts.infinite_rank >= 0),
                             .stops = double(facts.stop_rank >= 0),
                             .frozen = double(run.gradients.frozen_fingerprint()),
                             .groups = facts.groups};
    mine_.resize(std::size_t(agreed_numbers));
    std::memcpy(mine_.data(), &mine, sizeof(mine));
    mine_.insert(mine_.end(), facts.squared_norms.begin(), facts.squared_norms.end());
    mine_.insert(mine_.end(), facts.overflows.begin(), facts.overflows.end());
    numbers_.start(run.comm, mine_);
  }

  /// @param facts  those of `start`, which become those of all
  void finish(RunContext& run, StepFacts& facts) {
    if (run.world_size() == 1) return;
    const auto all = numbers_.finish();
    const std::size_t norms = facts.squared_norms.size(), losses = facts.overflows.size();
    const std::size_t width = std::size_t(agreed_numbers) + norms + losses;
    const bool local_sums =
        !run.gradients.summed;  // a strategy that has not reduced steps with this rank's gradients alone
    const int group = run.gradients.shard_group;
    AgreedNumbers first;
    StepFacts total;
    total.squared_norms.assign(norms, 0.0);
    total.overflows.assign(losses, 0.0);
    for (int r = 0; r < run.world_size(); ++r) {
      const auto sent = all.subspan(std::size_t(r) * width, width);
      AgreedNumbers theirs;
      std::memcpy(static_cast<void*>(&theirs), sent.data(), sizeof(theirs));
      if (r == 0) first = theirs;
      total.samples += theirs.samples;
      total.loss += theirs.loss;
      total.missing += theirs.missing;
      if (theirs.nan != 0 && total.nan_rank < 0) total.nan_rank = r;
      if (theirs.infinite != 0 && total.infinite_rank < 0) total.infinite_rank = r;
      if (theirs.stops != 0 && total.stop_rank < 0) total.stop_rank = r;
      total.other_frozen |= theirs.frozen != first.frozen;
      if (theirs.groups != first.groups)
        throw Error(ExitCode::ranks_disagree, "rank " + std::to_string(r) +
                                                  " has added other parameter groups to its optimizers than rank 0: "
                                                  "add the same ones on every rank, after the same step.");
      const auto its_norms = sent.subspan(std::size_t(agreed_numbers), norms), its_overflows = sent.last(losses);
      for (std::size_t k = 0; k < norms; ++k)
        // The parts of this rank's shard group add up. Replicas are the same on every rank; where they are not, an
        // overflow of one counts for all.
        if (r / group == run.rank() / group || !std::isfinite(its_norms[k])) total.squared_norms[k] += its_norms[k];
      for (std::size_t l = 0; l < losses; ++l) total.overflows[l] += its_overflows[l];
    }
    step_samples_ =
        local_sums && facts.samples > 0 ? facts.samples : total.samples;  // padding alone: any divisor will do
    facts = std::move(total);
  }

  /// The first rank that wants to stop, -1 if none does. A collective of its own, between epochs.
  static int stop_rank(RunContext& run, bool wants) {
    if (run.world_size() == 1) return wants ? 0 : -1;
    const double mine = wants;
    const auto all = run.comm.all_gather(std::span<const double>(&mine, 1));
    const auto first = std::find(all.begin(), all.end(), 1.0);
    return first == all.end() ? -1 : int(first - all.begin());
  }

  /// The weight that this rank's main gradients are sums over.
  double samples_in_gradients(const RunContext& run, const StepFacts& facts) const {
    return run.world_size() == 1 ? facts.samples : step_samples_;
  }

  /// For each slot on how many ranks its gradient is missing. A collective: only called where all ranks know that some
  /// are.
  std::vector<int> missing_ranks(RunContext& run) {
    std::vector<double> mine;
    for (const Slot& slot : run.gradients.slots) mine.push_back(slot.arrived || slot.rests ? 0 : 1);
    std::vector<int> count(mine.size(), 0);
    if (run.world_size() == 1) {
      for (std::size_t i = 0; i < mine.size(); ++i) count[i] = int(mine[i]);
      return count;
    }
    const auto all = run.comm.all_gather(mine);
    for (std::size_t i = 0; i < all.size(); ++i) count[i % mine.size()] += int(all[i]);
    return count;
  }

 private:
  std::vector<double> mine_;
  NumberGather numbers_;
  double step_samples_ = 0;
};

}  // namespace dovetail
