// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/gather_text.hpp>
#include <dovetail/testing/plain_training.hpp>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace dovetail::testing {

/// What was checked of a policy, and what of it does not hold.
struct Conformance {
  int checked = 0;
  std::vector<std::string> broken{};

  void check(bool holds, std::string what) {
    ++checked;
    if (!holds) broken.push_back(std::move(what));
  }
  explicit operator bool() const { return broken.empty(); }
};

/// The small runs of one pair of policies, each done twice with one Trainer. Checks what holds for every policy.
template <class S, class P>
class PairRuns {
 public:
  PairRuns(S strategy, P precision, Conformance& found)
      : strategy_(std::move(strategy)),
        precision_(std::move(precision)),
        comm_(Communicator::connect(current_ranks())),
        found_(found) {}

  Communicator& communicator() { return comm_; }

  /// Did the last run have a loss scaler?
  bool scaled() const { return scaled_; }

  /// @param same_on_ranks  must all ranks end with the same parameters?
  SmallOutcome run(const SmallRun& small, const std::string& what, bool same_on_ranks) {
    Trainer<S, P> trainer(options_of(small), strategy_, precision_);
    const SmallOutcome first = once(trainer, small, what), second = once(trainer, small, what);
    const bool finite =
        std::isfinite(first.loss) && std::isfinite(first.parameters.abs().max().template item<double>());
    found_.check(finite, what + ": after ten steps the loss or a parameter is not finite");
    found_.check(first.steps > 0, what + ": no optimizer step was taken");
    found_.check(first.loss == second.loss && first.parameters.equal(second.parameters),
                 what +
                     ": a second fit with the same Trainer gives other bits. A policy is copied for each fit, so what "
                     "it changes "
                     "must be its own member: no statics, nothing shared by pointer");
    if (same_on_ranks) found_.check(same_everywhere(first), what + ": the ranks end with different parameters");
    return first;
  }

 private:
  /// The rules know of a scaler from the traits only; this one looks.
  struct LooksForScaler {
    bool* scaled;
    void on_fit_start(LoopState& state) { *scaled = state.run.scaler.has_value(); }
  };

  SmallOutcome once(Trainer<S, P>& trainer, const SmallRun& small, const std::string& what) {
    const auto [x, y] = small_data(small.samples(comm_.size()));
    int optimizers_made = 0;
    const auto result = trainer.fit(SmallTask{&optimizers_made}, TensorDataset(x, y), LooksForScaler{&scaled_});
    found_.check(optimizers_made == 1,
                 what + ": configure_optimizers was called " + std::to_string(optimizers_made) + " times in one fit");
    return outcome_of(*result.model, result.loss, result.steps);
  }

  bool same_everywhere(const SmallOutcome& mine) {
    const std::string bytes(static_cast<const char*>(mine.parameters.const_data_ptr()), mine.parameters.nbytes());
    const auto all = all_gather_text(comm_, bytes);
    return std::all_of(all.begin(), all.end(), [&](const std::string& other) { return other == all.front(); });
  }

  S strategy_;
  P precision_;
  Communicator comm_;
  Conformance& found_;
  bool scaled_ = false;
};

}  // namespace dovetail::testing
