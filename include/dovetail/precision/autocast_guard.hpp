// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/Device.h>

#include <optional>

namespace dovetail {

/// Autocast to `dtype` on one device type, for the life of the guard; without a dtype it does nothing. What was set
/// before comes back, and leaving the outermost guard clears the cache of cast weights, so no stale one survives a
/// step.
class AutocastGuard {
 public:
  AutocastGuard(c10::DeviceType device, std::optional<at::ScalarType> dtype) : device_(device), active_(dtype) {
    if (!active_) return;
    enabled_before_ = at::autocast::is_autocast_enabled(device_);
    dtype_before_ = at::autocast::get_autocast_dtype(device_);
    cache_before_ = at::autocast::is_autocast_cache_enabled();
    at::autocast::set_autocast_dtype(device_, *dtype);
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_cache_enabled(true);
    at::autocast::increment_nesting();
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;
  ~AutocastGuard() {
    if (!active_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, enabled_before_);
    at::autocast::set_autocast_dtype(device_, dtype_before_);
    at::autocast::set_autocast_cache_enabled(cache_before_);
  }

 private:
  c10::DeviceType device_;
  bool active_, enabled_before_ = false, cache_before_ = true;
  at::ScalarType dtype_before_ = at::kFloat;
};

}  // namespace dovetail
