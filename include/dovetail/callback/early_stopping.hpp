// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/callback/text.hpp>
#include <dovetail/loop/state.hpp>
#include <dovetail/optim/mode.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

namespace dovetail {

/// Ends the fit when a validation metric has stopped getting better. Metrics are reduced over ranks, so that all ranks
/// decide alike without asking each other. The validation before the first step does not count.
///
/// An improvement is a value better than the best so far by more than `min_delta`; semantics of PyTorch Lightning's
/// callback of that name, where the check runs after each validation.
///
/// @throws Error(arguments) on options that make no sense, Error(user_code) when the metric is not logged or nothing is
///   validated
class EarlyStopping {
 public:
  struct Options {
    std::string monitor = "loss";  ///< name of a metric that validation_step logs
    Mode mode = Mode::min;
    int64_t patience = 3;               ///< validations without improvement after which the fit ends; 0: at the first
    double min_delta = 0;               ///< by how much a value must be better, in units of the metric; not negative
    std::optional<double> threshold{};  ///< ends the fit as soon as the metric is as good as this
    bool check_finite = true;           ///< ends the fit when the metric is NaN or infinite
  };

  EarlyStopping() : EarlyStopping(Options{}) {}
  explicit EarlyStopping(Options options) : options_(std::move(options)) {
    if (options_.patience < 0)
      throw Error(ExitCode::arguments,
                  "EarlyStopping: patience is " + std::to_string(options_.patience) + ": it must be at least 0.");
    if (!(options_.min_delta >= 0 && std::isfinite(options_.min_delta)))
      throw Error(ExitCode::arguments, "EarlyStopping: min_delta is " + detail::short_number(options_.min_delta) +
                                           ": it must be finite and not negative; the direction is given by mode.");
  }

  void on_fit_start(LoopState& state) {
    best_ = worst();
    best_epoch_ = -1;
    waited_ = 0;
    if (state.validation_batches == 0 || state.run.options.validate_every == 0)
      throw Error(ExitCode::user_code,
                  "EarlyStopping watches '" + options_.monitor +
                      "' of validation, but this fit has no validation: give it validation data, a "
                      "validation_step and validate_every above 0, or leave EarlyStopping out.");
  }

  void on_validation_end(LoopState& state) {
    if (state.sanity) return;
    const double value = monitored(state);
    if (options_.check_finite && !std::isfinite(value))
      return state.stop("early stopping: '" + options_.monitor + "' is " + detail::short_number(value));
    if (better(value, best_, options_.min_delta)) {
      best_ = value;
      best_epoch_ = state.epoch();
      waited_ = 0;
    } else {
      ++waited_;
    }
    if (options_.threshold && !better(*options_.threshold, value, 0) && !std::isnan(value))
      return state.stop("early stopping: '" + options_.monitor + "' is " + detail::short_number(value) +
                        " and has reached the threshold " + detail::short_number(*options_.threshold));
    if (waited_ > 0 && waited_ >= options_.patience)
      state.stop("early stopping: '" + options_.monitor + "' has not improved in " + std::to_string(waited_) +
                 (waited_ == 1 ? " validation" : " validations") + "; best " + detail::short_number(best_) +
                 (best_epoch_ < 0 ? std::string() : " in epoch " + std::to_string(best_epoch_ + 1)));
  }

  [[nodiscard]] double best() const { return best_; }               ///< infinite before the first improvement
  [[nodiscard]] int64_t best_epoch() const { return best_epoch_; }  ///< from 0; -1 before the first improvement
  [[nodiscard]] int64_t waited() const { return waited_; }          ///< validations since the best one

 private:
  double worst() const { return (options_.mode == Mode::min ? 1 : -1) * std::numeric_limits<double>::infinity(); }

  bool better(double value, double than, double by) const {
    return options_.mode == Mode::min ? value < than - by : value > than + by;
  }

  double monitored(const LoopState& state) const {
    if (const double* value = state.validation.find(options_.monitor)) return *value;
    std::string logged;
    for (const auto& [name, value] : state.validation.values) logged += (logged.empty() ? "'" : ", '") + name + "'";
    throw Error(ExitCode::user_code, "EarlyStopping watches '" + options_.monitor + "', but validation logged " +
                                         (logged.empty() ? "nothing" : "only " + logged) + " (rank " +
                                         std::to_string(state.run.rank()) + "): call step.log(\"" + options_.monitor +
                                         "\", ...) in validation_step, or set monitor to a name that is logged.");
  }

  Options options_;
  double best_ = std::numeric_limits<double>::infinity();
  int64_t best_epoch_ = -1, waited_ = 0;
};

}  // namespace dovetail
