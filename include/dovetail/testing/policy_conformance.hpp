// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/policies.hpp>
#include <dovetail/testing/conformance_runs.hpp>

#include <concepts>
#include <iostream>
#include <sstream>
#include <string>

/// For whoever writes a policy: does it keep what it promises? A whole program:
///
///     #include <dovetail/testing/policy_conformance.hpp>
///     int main(int argc, char** argv) {
///       dovetail::Launch launch(argc, argv);                  // run it with --ranks 1, 2 and 3
///       return dovetail::testing::conformance<LocalSGD>();    // a Strategy or a Precision
///     }
///
/// What is no policy at all does not compile, with the Trainer's own error. The rest is checked in small real runs:
///
/// - the set-up stages that it has hooks for are there (a hook whose trait is missing would never be called);
/// - two fits with one Trainer give the same bits, configure_optimizers is called once in each, and nothing diverges;
/// - a Strategy that says it is exact equals one device on the concatenated batch within 1e-6 in fp32, with
/// accumulation,
///   unequal batches and the kinds of clipping that it takes, and leaves all ranks with the same bits;
/// - a Precision stores the model in the format that its traits name, scales the loss if they say so and only then, and
///   stays within a few units of its coarsest format of one device in fp32.

namespace dovetail::testing {

namespace detail {

// A hook is the policy's own unless it is exactly the empty one of the base. A run that RunOf names is not asked:
// several policies may share one, with hooks that only some of them need.
template <class S>
concept OwnWrapModel = !requires {
  requires std::same_as<decltype(&S::wrap_model), void (StrategyBase::*)(StrategyContext&)>;
};
template <class S>
concept OwnRebuildOptimizers = !requires {
  requires std::same_as<decltype(&S::rebuild_optimizers), void (StrategyBase::*)(StrategyContext&)>;
};
template <class P>
concept OwnWrapOptimizers = !requires {
  requires std::same_as<decltype(&P::wrap_optimizers), void (PrecisionBase::*)(PrecisionContext&)>;
};

inline std::string within(double measured, double allowed) {
  std::ostringstream text;
  text << measured << " where " << allowed << " is allowed";
  return text.str();
}

/// In fp32 after ten steps on parameters of order one.
inline constexpr double exactness = 1e-6;

/// The distance of neighbouring numbers just above 1.
constexpr double ulp_of(Format format) {
  switch (format) {
    case Format::fp16:
      return 0x1p-10;
    case Format::bf16:
      return 0x1p-7;
    case Format::fp64:
      return 0x1p-52;
    case Format::fp32:
      break;
  }
  return 0x1p-23;
}

}  // namespace detail

/// Checks a Strategy, with fp32, on the ranks that this process is one of.
template <class S>
Conformance check_strategy(S strategy = {}) {
  Conformance found;
  found.check(S::traits.wraps_model || !detail::OwnWrapModel<S>,
              "there is a hook wrap_model, but the traits do not say wraps_model: it is never called");
  found.check(S::traits.rebuilds_optimizers || !detail::OwnRebuildOptimizers<S>,
              "there is a hook rebuild_optimizers, but the traits do not say rebuilds_optimizers: it is never called");

  PairRuns<S, FP32> runs(std::move(strategy), FP32{}, found);
  const auto compare = [&](const SmallRun& run, const std::string& what) {
    const SmallOutcome outcome = runs.run(run, what, S::traits.exact);
    if (!S::traits.exact) return;
    const double distance =
        testing::distance(outcome, train_plainly(run, runs.communicator().size(), TrainerOptions{}.seed));
    found.check(distance <= detail::exactness, what + ": differs from one device on the concatenated batch by " +
                                                   detail::within(distance, detail::exactness) +
                                                   "; or it is not `exact`");
  };
  compare({}, "equal batches");
  compare({.accumulate = 2, .short_tail = true}, "accumulation with a short tail");
  if constexpr (S::traits.clips.norm) compare({.accumulate = 2, .clip = clip_norm(0.05)}, "clipping by norm");
  if constexpr (S::traits.clips.value) compare({.short_tail = true, .clip = clip_value(0.01)}, "clipping by value");
  return found;
}

/// Checks a Precision, with a Strategy that takes any number of ranks.
template <class P, class S = DDP>
Conformance check_precision(P precision = {}) {
  Conformance found;
  found.check(P::traits.wraps_optimizers || !detail::OwnWrapOptimizers<P>,
              "there is a hook wrap_optimizers, but the traits do not say wraps_optimizers: it is never called");

  PairRuns<S, P> runs(S{}, std::move(precision), found);
  const auto coarsest = std::max(detail::ulp_of(P::traits.compute), detail::ulp_of(P::traits.storage));
  // Ten roundings of half a unit, and as much again for what is computed from them.
  const double allowed = std::max(10 * coarsest, detail::exactness);
  for (const SmallRun& run : {SmallRun{}, SmallRun{.accumulate = 2, .short_tail = true, .clip = clip_norm(0.5)}}) {
    const std::string what = run.accumulate == 1 ? "equal batches" : "accumulation with a short tail and clipping";
    const SmallOutcome outcome = runs.run(run, what, S::traits.exact);
    const bool all_steps = outcome.steps == SmallRun::epochs * 5;  // a scaler may have skipped some
    if (all_steps) {
      const double distance =
          testing::distance(outcome, train_plainly(run, runs.communicator().size(), TrainerOptions{}.seed));
      found.check(distance <= allowed,
                  what + ": differs from one device in fp32 by " + detail::within(distance, allowed));
    }
    found.check(outcome.stored == dtype_of(P::traits.storage), what + ": the model's weights are stored as " +
                                                                   c10::toString(outcome.stored) +
                                                                   ", which is not the traits' storage");
  }
  found.check(runs.scaled() == (P::traits.scaler != Scaler::none),
              runs.scaled()
                  ? "the run has a loss scaler, but the traits say that there is none: the rules cannot see it"
                  : "the traits say that there is a loss scaler, but the run has none: set run.scaler in environment");
  return found;
}

/// Checks whichever it is and prints on rank 0 what does not hold. Returns the exit code: 0 if all ranks found nothing.
template <class Policy>
int conformance(Policy policy = {}) {
  const Conformance found = [&] {
    if constexpr (std::derived_from<Policy, PrecisionBase>)
      return check_precision(std::move(policy));
    else
      return check_strategy(std::move(policy));
  }();
  auto comm = Communicator::connect(current_ranks());
  std::string mine;
  for (const std::string& what : found.broken) mine += "  rank " + std::to_string(comm.rank()) + ": " + what + ".\n";
  std::string all;
  for (const std::string& text : all_gather_text(comm, mine)) all += text;
  if (comm.rank() == 0)
    std::cout << "'" << Policy::name << "' on " << comm.size() << (comm.size() == 1 ? " rank: " : " ranks: ")
              << found.checked << " checks, " << (all.empty() ? "all hold\n" : "these do not hold:\n") << all
              << std::flush;
  return all.empty() ? 0 : 1;
}

}  // namespace dovetail::testing
