// SPDX-License-Identifier: Apache-2.0
// Differences between outcomes, and what all ranks found, brought together on rank 0.
#pragma once

#include <dovetail/comm/gather_text.hpp>

#include <cstring>
#include <iomanip>
#include <iostream>
#include <map>
#include <sstream>

#include "parity/oracle.hpp"

namespace parity {

/// A fingerprint of every bit of an outcome: what is equal on two ranks or in two runs has the same.
inline uint64_t fingerprint(const Outcome& outcome) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&hash](const void* bytes, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) hash = (hash ^ static_cast<const unsigned char*>(bytes)[i]) * 0x100000001b3;
  };
  add(&outcome.steps, sizeof outcome.steps);
  add(&outcome.loss, sizeof outcome.loss);
  for (const auto& [name, tensor] : outcome.tensors) {
    const Tensor flat = tensor.contiguous();
    add(name.data(), name.size());
    add(flat.const_data_ptr(), flat.nbytes());
  }
  return hash;
}

struct Difference {
  double worst = 0;      // absolute; infinite where the two cannot be compared
  int64_t elements = 0;  // how many differ at all
  std::string where;
};

inline Difference difference(const Outcome& a, const Outcome& b) {
  Difference found;
  const auto refuse = [&found](std::string why) {
    found = {HUGE_VAL, 1, std::move(why)};
    return found;
  };
  if (a.steps != b.steps) return refuse(std::to_string(a.steps) + " and " + std::to_string(b.steps) + " steps");
  if (a.tensors.size() != b.tensors.size()) return refuse("other parameters");
  const auto note = [&found](double distance, const std::string& where) {
    if (std::isnan(distance)) distance = HUGE_VAL;
    if (distance > found.worst) {
      found.worst = distance;
      found.where = where;
    }
  };
  if (a.loss != b.loss) ++found.elements;
  note(std::abs(a.loss - b.loss) / std::max(1.0, std::abs(b.loss)), "the loss");
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    const auto& [name, left] = a.tensors[i];
    const auto& [other_name, right] = b.tensors[i];
    if (name != other_name) return refuse("'" + name + "' and '" + other_name + "'");
    if (left.sizes() != right.sizes() || left.scalar_type() != right.scalar_type())
      return refuse("'" + name + "' of another shape or dtype");
    found.elements += left.ne(right).sum().item<int64_t>();
    if (left.numel() > 0)
      note((left.to(torch::kFloat64) - right.to(torch::kFloat64)).abs().max().item<double>(), "'" + name + "'");
  }
  return found;
}

/// Counts comparisons by kind; the ranks share the work, and rank 0 prints all of it.
class Report {
 public:
  explicit Report(dovetail::Communicator comm) : comm_(std::move(comm)) {}

  /// One comparison. `kind` is a line of the summary.
  void add(const std::string& kind, const std::string& what, double measured, double allowed,
           const std::string& where = {}) {
    Line& line = lines_[kind];
    ++line.count;
    line.worst = std::max(line.worst, measured);
    line.allowed = allowed;
    if (measured <= allowed) return;
    std::ostringstream text;
    text << what << ": " << kind << ": " << measured << " where " << allowed << " is allowed"
         << (where.empty() ? "" : ", in ") << where;
    failures_.push_back(text.str());
  }
  void add(const std::string& kind, const std::string& what, bool holds, const std::string& why = {}) {
    add(kind, what, holds ? 0 : 1, 0, why);
  }

  /// Prints on rank 0; the number of failures of all ranks, on every rank.
  int64_t print() {
    std::ostringstream mine;
    mine << std::setprecision(17);
    for (const auto& [kind, line] : lines_)
      mine << kind << '\t' << line.count << '\t' << line.worst << '\t' << line.allowed << '\n';
    std::map<std::string, Line> total;
    for (const std::string& text : all_gather_text(comm_, mine.str())) {
      std::istringstream rows(text);
      for (std::string kind, count, worst, allowed; std::getline(rows, kind, '\t') && std::getline(rows, count, '\t') &&
                                                    std::getline(rows, worst, '\t') && std::getline(rows, allowed);) {
        Line& line = total[kind];
        line.count += std::stoll(count);
        line.worst = std::max(line.worst, std::stod(worst));
        line.allowed = std::stod(allowed);
      }
    }
    std::string failed;
    int64_t failures = 0;
    for (const std::string& failure : failures_) failed += failure + "\n";
    std::ostringstream all;
    for (const std::string& text : all_gather_text(comm_, failed)) {
      failures += std::count(text.begin(), text.end(), '\n');
      all << text;
    }
    if (comm_.rank() == 0) {
      std::cout << std::left << std::setw(64) << "  compared" << std::right << std::setw(7) << "times" << std::setw(12)
                << "worst" << std::setw(12) << "allowed"
                << "\n";
      for (const auto& [kind, line] : total)
        std::cout << "  " << std::left << std::setw(62) << kind << std::right << std::setw(7) << line.count
                  << std::setw(12) << std::setprecision(3) << line.worst << std::setw(12) << line.allowed << "\n";
      std::istringstream each(all.str());
      int shown = 0;
      for (std::string line; std::getline(each, line) && shown < 60; ++shown) std::cout << "WRONG: " << line << "\n";
      std::cout << std::flush;
    }
    return failures;
  }

 private:
  struct Line {
    int64_t count = 0;
    double worst = 0, allowed = 0;
  };

  dovetail::Communicator comm_;
  std::map<std::string, Line> lines_;
  std::vector<std::string> failures_;
};

}  // namespace parity
