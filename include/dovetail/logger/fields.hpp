// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/loop/exact_number.hpp>

#include <cmath>
#include <string>
#include <string_view>

/// How loggers write what is in a MetricsRow.
namespace dovetail::detail {

/// A metric's name as a column or key: the first three fields of every row are taken, so a metric of one of these names
/// is written as `logged_epoch`, say.
inline std::string field_name(std::string_view metric) {
  const bool taken = metric == "stage" || metric == "epoch" || metric == "step";
  return (taken ? "logged_" : "") + std::string(metric);
}

}  // namespace dovetail::detail
