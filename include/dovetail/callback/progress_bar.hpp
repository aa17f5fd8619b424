// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/callback/text.hpp>
#include <dovetail/loop/state.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <utility>

#include <sys/ioctl.h>
#include <unistd.h>

namespace dovetail {

/// How far the fit is, on rank 0: loss of the last step, samples per second in this epoch (all ranks together, without
/// validation), time left for the whole fit, and at the end of an epoch the metrics of validation.
///
/// On a terminal it is one line that is drawn again and again. Elsewhere, in a file say, it is a line for some 10 % of
/// an epoch and one for its end, without control characters.
class ProgressBar {
 public:
  /// Is the output a terminal? `ask`: it is, if it is std::cout and the system says so.
  enum class Terminal { ask, yes, no };

  struct Options {
    bool quiet = false;              ///< print nothing
    double interval = 0.1;           ///< least seconds between two drawings, or two plain lines within an epoch
    std::ostream* out = &std::cout;  ///< must live as long as the fit
    Terminal terminal = Terminal::ask;
    int width = 0;                    ///< columns of the terminal; 0: as it says, else 80
    std::function<double()> clock{};  ///< seconds since some moment; empty: the steady clock
  };

  ProgressBar() : ProgressBar(Options{}) {}
  explicit ProgressBar(Options options) : options_(std::move(options)) {}

  [[nodiscard]] bool needs_steps() const { return !options_.quiet; }

  void on_fit_start(LoopState& state) {
    active_ = !options_.quiet && state.run.rank() == 0;
    terminal_ = options_.terminal == Terminal::yes ||
                (options_.terminal == Terminal::ask && options_.out == &std::cout && isatty(STDOUT_FILENO) == 1);
    open_ = false;
    fit_started_.reset();
  }

  void on_train_epoch_start(LoopState& state) {
    if (!active_) return;
    epoch_started_ = now();
    if (!fit_started_) {
      fit_started_ = epoch_started_;
      first_fraction_ = fraction(state);
    }
    drawn_ = epoch_started_;
    tenths_ = 0;
    rate_ = 0;
    validation_.clear();
    if (terminal_) draw(status(state));
  }

  void on_train_step_end(LoopState& state) {
    if (!active_) return;
    const double time = now();
    if (time > epoch_started_) rate_ = double(state.samples) / (time - epoch_started_);
    if (time - drawn_ < options_.interval) return;
    if (terminal_) {
      drawn_ = time;
      draw(status(state));
    } else if (const int64_t tenths = percent(state) / 10;
               tenths > tenths_ && tenths < 10) {  // the end has its own line
      drawn_ = time;
      tenths_ = tenths;
      print(head(state) + numbers(state) + left(state));
    }
  }

  void on_validation_start(LoopState& state) {
    if (!active_ || !terminal_) return;
    draw(state.sanity ? "validation before the first step"
                      : head(state) + bar(state) + numbers(state) + "  validating");
  }

  void on_validation_end(LoopState& state) {
    if (!active_) return;
    if (state.sanity) {
      if (terminal_) draw("");
      return;
    }
    validation_ = "  validation:";
    for (const auto& [name, value] : state.validation.values)
      validation_ += "  " + name + " " + detail::short_number(value);
    if (state.validation.values.empty()) validation_ += "  nothing logged";
  }

  void on_train_epoch_end(LoopState& state) {
    if (active_)
      print(head(state) + numbers(state) + "  in " + detail::duration_text(now() - epoch_started_) + validation_);
  }

  void on_fit_end(LoopState& state) {
    if (!active_) return;
    if (state.stopping())
      print("stopped after step " + std::to_string(state.step()) + ": " + state.stop_reason());
    else
      close();
  }

  void on_exception(LoopState&, const std::exception_ptr&) {
    if (active_) close();
  }

 private:
  double now() const {
    if (options_.clock) return options_.clock();
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  int columns() const {
    if (options_.width > 0) return options_.width;
    winsize size{};
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  }

  static int64_t percent(const LoopState& state) {
    return state.batches_per_epoch > 0 ? 100 * state.batch / state.batches_per_epoch : 100;
  }

  /// Of the whole fit, from 0 to 1: by epochs, or by steps where they end it sooner.
  static double fraction(const LoopState& state) {
    const auto& options = state.run.options;
    const double in_epoch = double(state.batch) / double(std::max<int64_t>(state.batches_per_epoch, 1));
    double done = (double(state.epoch()) + in_epoch) / double(std::max<int64_t>(options.max_epochs, 1));
    if (options.max_steps > 0) done = std::max(done, double(state.step()) / double(options.max_steps));
    return std::min(done, 1.0);
  }

  static std::string head(const LoopState& state) {
    std::string number = std::to_string(percent(state));
    number.insert(0, number.size() < 3 ? 3 - number.size() : 0, ' ');
    return "epoch " + std::to_string(state.epoch() + 1) + "/" + std::to_string(state.run.options.max_epochs) + "  " +
           number + " %";
  }

  std::string numbers(const LoopState& state) const {
    if (state.batch == 0) return "";
    return "  loss " + detail::short_number(state.loss) + (state.step_skipped ? " (step skipped)" : "") + "  " +
           (rate_ > 0 ? detail::short_number(rate_ < 1000 ? rate_ : std::round(rate_), rate_ < 1000 ? 4 : 12) : "?") +
           " samples/s";
  }

  std::string left(const LoopState& state) const {
    const double done = fraction(state), gained = done - first_fraction_;
    if (!(gained > 0)) return "";
    return "  " + detail::duration_text((now() - *fit_started_) * (1 - done) / gained) + " left";
  }

  static std::string bar(const LoopState& state) {
    constexpr int64_t cells = 20;
    const auto filled = static_cast<std::size_t>(std::clamp<int64_t>(percent(state) * cells / 100, 0, cells));
    return " [" + std::string(filled, '#') + std::string(cells - filled, '-') + "]";
  }

  std::string status(const LoopState& state) const { return head(state) + bar(state) + numbers(state) + left(state); }

  /// The line that is drawn over; it must fit into one row, or the next drawing starts in the wrong one.
  void draw(const std::string& text) {
    *options_.out << '\r' << text.substr(0, static_cast<std::size_t>(std::max(columns() - 1, 1))) << "\x1b[K"
                  << std::flush;
    open_ = !text.empty();
  }

  /// A line that stays.
  void print(const std::string& text) {
    if (terminal_) *options_.out << '\r';
    *options_.out << text << (terminal_ ? "\x1b[K\n" : "\n") << std::flush;
    open_ = false;
  }

  /// What others print next begins a line.
  void close() {
    if (open_) *options_.out << '\n' << std::flush;
    open_ = false;
  }

  Options options_;
  bool active_ = false, terminal_ = false;
  bool open_ = false;  ///< is there text in the line that is drawn over?
  double epoch_started_ = 0, drawn_ = 0, rate_ = 0, first_fraction_ = 0;
  std::optional<double> fit_started_;
  int64_t tenths_ = 0;
  std::string validation_;
};

}  // namespace dovetail
