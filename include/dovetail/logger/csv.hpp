// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/logger/fields.hpp>
#include <dovetail/logger/run_folder.hpp>

#include <algorithm>
#include <optional>
#include <vector>

namespace dovetail {

namespace detail {

/// A field as RFC 4180 wants it: in quotes where it holds a comma, a quote or a line break.
inline std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

/// Where the first record ends: behind the first line feed that is in no quotes.
inline std::size_t end_of_record(std::string_view text) {
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    quoted ^= text[i] == '"';
    if (text[i] == '\n' && !quoted) return i + 1;
  }
  return text.size();
}

}  // namespace detail

/// Writes metrics.csv: a header, then one record per row with the columns stage, epoch, step and the metrics in the
/// order in which their names first came. A name that comes later adds a column: the file is replaced at once by one
/// with empty fields in the older records, as is a field whose metric a row does not have. Numbers read back the same;
/// others are nan, inf and -inf. A metric called stage, epoch or step is written as logged_stage and so on. Quoting
/// follows RFC 4180, with line feeds.
///
/// Each record is handed to the system when it comes. The file of an earlier run in the same directory is set aside as
/// metrics.1.csv. Only rank 0 writes.
///
/// @throws Error(arguments) when the directory cannot be made or the file cannot be written
class CSVLogger {
 public:
  explicit CSVLogger(std::string directory) : directory_(std::move(directory)) {
    if (directory_.empty())
      throw Error(ExitCode::arguments, "CSVLogger got an empty path: name the directory to write metrics.csv to.");
  }

  void on_fit_start(LoopState& state) {
    file_.reset();
    detail::on_rank_zero(state.run.comm, [&] { return open(), directory_; });
  }

  void log_metrics(const MetricsRow& row) {
    if (!file_) open();
    add_columns(row);
    std::vector<std::string> fields(columns_.size());
    for (const auto& [name, value] : row.values) fields[column(name)] = number(value);
    std::string record =
        detail::csv_field(row.stage) + "," + std::to_string(row.epoch) + "," + std::to_string(row.step);
    for (const std::string& field : fields) record += "," + field;
    file_->write(record + "\n");
  }

  void log_options(const ResolvedOptions& options) { write_options(directory_, options); }

  [[nodiscard]] std::string path() const { return directory_ + "/metrics.csv"; }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return detail::exact_number(value);
  }

  std::size_t column(const std::string& name) const {
    return static_cast<std::size_t>(std::find(columns_.begin(), columns_.end(), name) - columns_.begin());
  }

  std::string header() const {
    std::string record = "stage,epoch,step";
    for (const std::string& name : columns_) record += "," + detail::csv_field(detail::field_name(name));
    return record + "\n";
  }

  void open() {
    detail::make_directories(directory_);
    detail::set_aside(path());
    columns_.clear();
    file_.emplace(path());
    file_->write(header());
  }

  void add_columns(const MetricsRow& row) {
    const std::size_t before = columns_.size();
    for (const auto& value : row.values)
      if (column(value.name) == columns_.size()) columns_.push_back(value.name);
    if (columns_.size() == before) return;
    const auto old = detail::read_file(path());
    if (!old) detail::refuse_path("read back", path(), errno);
    std::string_view records = *old;
    records.remove_prefix(detail::end_of_record(records));
    std::string text = header();
    const std::string empty(columns_.size() - before, ',');
    while (!records.empty()) {
      const std::size_t end = detail::end_of_record(records);
      text += records.substr(0, end - 1);
      text += empty + "\n";
      records.remove_prefix(end);
    }
    detail::replace_file(path(), text);
    file_.emplace(path(), /*append=*/true);
  }

  std::string directory_;
  std::vector<std::string> columns_;  ///< names of metrics
  std::optional<detail::OutputFile> file_;
};

}  // namespace dovetail
