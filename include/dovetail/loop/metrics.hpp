// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/communicator.hpp>
#include <dovetail/comm/gather_text.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail {

/// One line for a logger: named values that are already reduced over ranks.
struct MetricsRow {
  struct Value {
    std::string name;
    double value;
  };
  std::string_view stage;  ///< "train" or "validation"
  int64_t epoch = 0;       ///< from 0
  int64_t step = 0;        ///< optimizer steps taken
  std::vector<Value> values;

  /// The value of that name, or null.
  const double* find(std::string_view name) const {
    for (const Value& value : values)
      if (value.name == name) return &value.value;
    return nullptr;
  }
};

/// Weighted means of what a Task logs: sum of value x samples, and of samples, per name. No allocation once a name is
/// known.
class MetricSums {
 public:
  void add(std::string_view name, double value, double samples) {
    Sum& sum = at(name);
    sum.value += value * samples;
    sum.samples += samples;
  }

  bool empty() const { return sums_.empty(); }

  /// Means over all ranks, in order of first use, and starts anew. Every rank must have logged the same names.
  std::vector<MetricsRow::Value> reduce(Communicator& comm) {
    check_names(comm);
    std::vector<double> mine;
    for (const Sum& sum : sums_) {
      mine.push_back(sum.value);
      mine.push_back(sum.samples);
    }
    std::vector<double> total(mine.size(), 0.0);
    if (comm.size() == 1) {
      total = mine;
    } else if (!mine.empty()) {
      const auto all = comm.all_gather(mine);
      for (std::size_t i = 0; i < all.size(); ++i) total[i % mine.size()] += all[i];
    }
    std::vector<MetricsRow::Value> means;
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      if (total[2 * i + 1] > 0) means.push_back({sums_[i].name, total[2 * i] / total[2 * i + 1]});
      sums_[i].value = sums_[i].samples = 0;
    }
    return means;
  }

 private:
  struct Sum {
    std::string name;
    double value = 0, samples = 0;
  };

  Sum& at(std::string_view name) {
    for (Sum& sum : sums_)
      if (sum.name == name) return sum;
    return sums_.emplace_back(Sum{std::string(name)});
  }

  void check_names(Communicator& comm) {
    if (comm.size() == 1) return;
    const double count = double(sums_.size());  // agreed first, so that all ranks compare names or none does
    bool known = true;
    for (double theirs : comm.all_gather(std::span<const double>(&count, 1))) known &= theirs == double(checked_names_);
    if (known) return;
    std::string names;
    for (const Sum& sum : sums_) names += sum.name + " ";
    const auto all = all_gather_text(comm, names);
    for (std::size_t r = 0; r < all.size(); ++r)
      if (all[r] != all[0])
        throw Error(ExitCode::ranks_disagree, "ranks logged different metrics: rank 0 logged '" + all[0] + "', rank " +
                                                  std::to_string(r) + " '" + all[r] +
                                                  "'. Log the same names in the same order on every rank.");
    checked_names_ = sums_.size();
  }

  std::vector<Sum> sums_;
  std::size_t checked_names_ = 0;
};

}  // namespace dovetail
