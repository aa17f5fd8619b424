// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace dovetail {

/// What a run ends with. The launcher hands the code of the rank that failed first to its caller; 128 + n stands for a
/// rank that signal n ended.
enum class ExitCode : int {
  done = 0,
  user_code = 1,           ///< an exception from the user's code, an undefined loss, an optimizer over nothing
  arguments = 2,           ///< command line, options or environment
  ranks_disagree = 3,      ///< ranks were started with different models, options or data
  checkpoint = 4,          ///< a checkpoint that cannot be used
  data = 5,                ///< a data file or data set that cannot be used
  numeric = 6,             ///< stopped because the numbers went bad
  collective_timeout = 7,  ///< a rank did not take part in a collective in time
  peer_lost = 8,           ///< another rank is gone
  preempted = 75           ///< asked to stop, and a checkpoint was saved
};

/// The one exception type of Dovetail: a sentence that says what went wrong, where, on which rank and what to do, with
/// the exit code of a program that does not catch it.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  [[nodiscard]] ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

}  // namespace dovetail
