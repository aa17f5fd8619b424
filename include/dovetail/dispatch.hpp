// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/policies.hpp>
#include <dovetail/registry.hpp>
#include <dovetail/trainer.hpp>

namespace dovetail {

namespace detail {

/// The judge that knows a Task: its optimizers count too.
template <class Optimizers>
struct JudgeForTask;
template <class... Optimizers>
struct JudgeForTask<OptimizerTypes<Optimizers...>> : JudgeWith<Optimizers...> {};

}  // namespace detail

/// Chooses a trainer by name at run time: calls `f(Pair<S, P>{})` for the pair with these names and returns what it
/// returns. f is instantiated only for pairs that fit each other and the Task's optimizers:
///
///     dispatch<Task>("fsdp", "bf16-mixed", [&]<class S, class P>(Pair<S, P>) { Trainer<S, P>(options).fit(task, data);
///     });
///
/// @tparam Pairs  what there is to choose from, all built-in pairs unless said otherwise; a program may name three, or
/// add
///                policies of its own
/// @throws Error  with ExitCode::arguments: for an unknown name with the known ones, for a refused pair with the rule's
/// text
///                and with what fits
template <class Task, class Pairs = BuiltInPairs, class F>
auto dispatch(std::string_view strategy, std::string_view precision, F&& f) {
  using Judges = detail::JudgeForTask<optimizer_types_of<detail::OptimizersOf<Task>>>;
  return dispatch_pair<Pairs, Judges::template Judge>(strategy, precision, f);
}

}  // namespace dovetail
