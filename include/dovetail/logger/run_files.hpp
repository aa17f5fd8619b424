// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/logger/csv.hpp>
#include <dovetail/logger/json_lines.hpp>
#include <dovetail/logger/run_folder.hpp>

#include <cstdio>
#include <optional>

namespace dovetail {

/// The folder of a run: metrics.csv, metrics.jsonl and options.json, written by rank 0. What
/// TrainerOptions::run_directory asks for.
class RunFiles {
 public:
  explicit RunFiles(std::string directory) : wanted_(std::move(directory)) {}

  void on_fit_start(LoopState& state) {
    directory_ = make_run_directory(state.run.comm, wanted_);
    if (state.run.rank() != 0) return;
    csv_.emplace(directory_);
    json_lines_.emplace(directory_);
  }

  void log_options(const ResolvedOptions& options) { write_options(directory_, options); }

  void log_metrics(const MetricsRow& row) {
    csv_->log_metrics(row);
    json_lines_->log_metrics(row);
  }

  void on_fit_end(LoopState& state) {
    if (state.run.rank() == 0 && state.run.options.progress) std::printf("run folder: %s\n", directory_.c_str());
  }

 private:
  std::string wanted_, directory_;
  std::optional<CSVLogger> csv_;
  std::optional<JSONLinesLogger> json_lines_;
};

}  // namespace dovetail
