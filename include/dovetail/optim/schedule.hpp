// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/launch/error.hpp>
#include <dovetail/optim/mode.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string>

/// Schedules as values. Each but Plateau is a pure function of the number t of steps (or epochs) already taken: the
/// next step has, in every group, the learning rate that the group began with times `factor(t)`. So nothing has to be
/// saved to resume.
///
/// A schedule of your own is a struct with `double factor(int64_t taken) const`.

namespace dovetail {

namespace detail {

inline void require_schedule(bool holds, const char* rule) {
  if (!holds) throw Error(ExitCode::user_code, rule);
}

/// (t + 1) / warmup: the first step is not wasted on a learning rate of 0, the last of the warm-up has the full one.
inline double warmup_factor(int64_t taken, int64_t warmup) {
  return double(taken + 1) / double(warmup);
}

/// How far t is from the end of the warm-up to the end of all, 0 to 1.
inline double progress(int64_t taken, int64_t warmup, int64_t total) {
  return std::clamp(double(taken - warmup) / double(total - warmup), 0.0, 1.0);
}

}  // namespace detail

/// Up in a straight line, then down in half a cosine (Loshchilov and Hutter, "SGDR", ICLR 2017, without restarts):
/// t < warmup_steps: (t + 1) / warmup_steps; then min + (1 - min) (1 + cos(pi s)) / 2, where s goes from 0 to 1 at
/// total_steps.
struct WarmupCosine {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;  ///< with the warm-up; min_factor from there on
  double min_factor = 0;

  [[nodiscard]] double factor(int64_t taken) const {
    if (taken < warmup_steps) return detail::warmup_factor(taken, warmup_steps);
    const double s = detail::progress(taken, warmup_steps, total_steps);
    return min_factor + (1 - min_factor) * (1 + std::cos(std::numbers::pi * s)) / 2;
  }
  void check() const {
    detail::require_schedule(warmup_steps >= 0 && total_steps > warmup_steps,
                             "WarmupCosine needs total_steps above warmup_steps, and warmup_steps not negative.");
    detail::require_schedule(std::isfinite(min_factor), "WarmupCosine needs a finite min_factor.");
  }
};

/// Up in a straight line, then down in one: after the warm-up 1 - (1 - min) s.
struct LinearDecay {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;  ///< with the warm-up; min_factor from there on
  double min_factor = 0;

  [[nodiscard]] double factor(int64_t taken) const {
    if (taken < warmup_steps) return detail::warmup_factor(taken, warmup_steps);
    return 1 - (1 - min_factor) * detail::progress(taken, warmup_steps, total_steps);
  }
  void check() const {
    detail::require_schedule(warmup_steps >= 0 && total_steps > warmup_steps,
                             "LinearDecay needs total_steps above warmup_steps, and warmup_steps not negative.");
    detail::require_schedule(std::isfinite(min_factor), "LinearDecay needs a finite min_factor.");
  }
};

/// factor to the power of floor(t / every).
struct StepDecay {
  int64_t every = 0;
  double gamma = 0.1;

  [[nodiscard]] double factor(int64_t taken) const { return std::pow(gamma, double(taken / every)); }
  void check() const {
    detail::require_schedule(every > 0, "StepDecay needs every above 0.");
    detail::require_schedule(std::isfinite(gamma), "StepDecay needs a finite gamma.");
  }
};

/// Cuts the learning rate when a metric has stopped getting better, as LibTorch's ReduceLROnPlateauScheduler does with
/// relative thresholds. Looks at the metric after each validation.
struct Plateau {
  std::string monitor{};  ///< name of the metric, as logged in validation_step
  Mode mode = Mode::min;
  double factor = 0.1;      ///< what the learning rate is multiplied with
  int64_t patience = 10;    ///< so many validations in a row may be no better; the next one cuts
  double threshold = 1e-4;  ///< better means by this part of the best value
  int64_t cooldown = 0;     ///< validations after a cut that do not count
  double min_factor = 0;    ///< of the learning rate that the group began with

  void check() const {
    detail::require_schedule(!monitor.empty(), "Plateau needs the name of the metric to monitor.");
    detail::require_schedule(factor > 0 && factor < 1, "Plateau needs a factor between 0 and 1.");
    detail::require_schedule(std::isfinite(threshold) && std::isfinite(min_factor),
                             "Plateau needs a finite threshold and a finite min_factor.");
  }
};

/// Where a plateau stands.
class PlateauState {
 public:
  explicit PlateauState(const Plateau& rule)
      : rule_(rule), best_((rule.mode == Mode::min ? 1 : -1) * std::numeric_limits<double>::infinity()) {}

  /// Takes the metric of one validation; returns the factor on the base learning rate from now on.
  double observe(double metric) {
    if (better(metric)) {
      best_ = metric;
      bad_ = 0;
    } else {
      ++bad_;
    }
    if (cooling_ > 0) {
      --cooling_;
      bad_ = 0;
    }
    if (bad_ > rule_.patience) {
      factor_ = std::max(factor_ * rule_.factor, rule_.min_factor);
      cooling_ = rule_.cooldown;
      bad_ = 0;
    }
    return factor_;
  }

 private:
  [[nodiscard]] bool better(double metric) const {
    if (!std::isfinite(best_)) return std::isfinite(metric);
    return rule_.mode == Mode::min ? metric < best_ * (1 - rule_.threshold) : metric > best_ * (1 + rule_.threshold);
  }

  Plateau rule_;
  double best_;
  double factor_ = 1;
  int64_t bad_ = 0;
  int64_t cooling_ = 0;
};

}  // namespace dovetail
