// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/logger/fields.hpp>
#include <dovetail/logger/run_folder.hpp>

#include <optional>

namespace dovetail {

/// Writes metrics.jsonl: one object per row, {"stage":"train","epoch":0,"step":50,"loss":0.25}. Numbers read back the
/// same; JSON has no NaN and no infinities, so these are the strings "NaN", "Infinity" and "-Infinity", which Python's
/// float() and JavaScript's Number() take. A metric called stage, epoch or step is written as logged_stage and so on.
///
/// Each row is handed to the system when it comes. The file of an earlier run in the same directory is set aside as
/// metrics.1.jsonl. Only rank 0 writes.
///
/// @throws Error(arguments) when the directory cannot be made or the file cannot be written
class JSONLinesLogger {
 public:
  explicit JSONLinesLogger(std::string directory) : directory_(std::move(directory)) {
    if (directory_.empty())
      throw Error(ExitCode::arguments,
                  "JSONLinesLogger got an empty path: name the directory to write metrics.jsonl to.");
  }

  void on_fit_start(LoopState& state) {
    file_.reset();
    detail::on_rank_zero(state.run.comm, [&] { return open(), directory_; });
  }

  void log_metrics(const MetricsRow& row) {
    if (!file_) open();
    std::string line = "{\"stage\":" + detail::json_text(row.stage) + ",\"epoch\":" + std::to_string(row.epoch) +
                       ",\"step\":" + std::to_string(row.step);
    for (const auto& [name, value] : row.values)
      line += "," + detail::json_text(detail::field_name(name)) + ":" + number(value);
    file_->write(line + "}\n");
  }

  void log_options(const ResolvedOptions& options) { write_options(directory_, options); }

  [[nodiscard]] std::string path() const { return directory_ + "/metrics.jsonl"; }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "\"NaN\"";
    if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
    const std::string text = detail::exact_number(value);
    // A reader takes digits alone for an integer, in which -0 has no sign.
    return text.find_first_not_of("-0123456789") == text.npos ? text + ".0" : text;
  }

  void open() {
    detail::make_directories(directory_);
    detail::set_aside(path());
    file_.emplace(path());
  }

  std::string directory_;
  std::optional<detail::OutputFile> file_;
};

}  // namespace dovetail
