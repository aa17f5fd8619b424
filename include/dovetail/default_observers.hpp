// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/callback/model_summary.hpp>
#include <dovetail/callback/progress_bar.hpp>
#include <dovetail/core/hook_report.hpp>
#include <dovetail/logger/run_files.hpp>
#include <dovetail/loop/observer.hpp>
#include <dovetail/run/options.hpp>

namespace dovetail::detail {

/// The observers of a fit: the Task's own moments first, then what the options ask for, then what was given to fit.
template <class Task, class... Given>
Observers observers_of(const TrainerOptions& options, int rank, Task& task, Given&&... given) {
  Observers list;
  if constexpr (has_any_of<std::remove_cv_t<Task>>(TaskHooks{})) list.add(task);
  if (options.progress && rank == 0) {
    if constexpr (!(std::is_same_v<std::remove_cvref_t<Given>, ModelSummary> || ...)) list.add(ModelSummary{});
    if constexpr (!(std::is_same_v<std::remove_cvref_t<Given>, ProgressBar> || ...)) list.add(ProgressBar{});
  }
  if (!options.run_directory.empty()) list.add(RunFiles(options.run_directory));
  (list.add(std::forward<Given>(given)), ...);
  return list;
}

}  // namespace dovetail::detail
