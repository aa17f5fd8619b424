// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace sharding {

/// Ratios of neighbouring blocks of time.
class Ratios {
 public:
  void add(double ratio) { values_.push_back(ratio); }
  bool enough() const { return values_.size() >= 6; }

  double median() const {
    const auto sorted = ordered();
    return (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
  }

  /// The median lies between these with 95 %, whatever the distribution: by the sign test, in its normal form.
  std::pair<double, double> interval() const {
    const auto sorted = ordered();
    const double n = double(sorted.size()), half = 0.98 * std::sqrt(n);
    const auto at = [&](double rank) { return sorted[std::size_t(std::clamp(rank, 0.0, n - 1))]; };
    return {at(std::floor(n / 2 - half)), at(std::ceil(n / 2 - 1 + half))};
  }

  std::string text() const {
    char line[80];
    const auto [low, high] = interval();
    std::snprintf(line, sizeof line, "%.3f (%.3f to %.3f)", median(), low, high);
    return line;
  }

 private:
  std::vector<double> ordered() const {
    std::vector<double> sorted = values_;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }
  std::vector<double> values_;
};

}  // namespace sharding
