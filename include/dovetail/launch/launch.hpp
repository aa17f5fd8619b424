// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>
#include <string>

#include <dovetail/launch/arguments.hpp>
#include <dovetail/launch/supervisor.hpp>
#include <dovetail/launch/terminate.hpp>

namespace dovetail {

/// Makes this process one rank of a run. To be made first in main:
///
///     int main(int argc, char** argv) {
///       dovetail::Launch launch(argc, argv);
///
/// - Started by torchrun or mpirun: reads rank and world size from the environment.
/// - Started by hand with `--ranks N`, N > 1: starts this program N times with the other arguments, waits for the ranks
///   and ends with the exit code of the one that failed first; only the ranks return from the constructor. When one
///   fails the others are ended; SIGINT, SIGTERM and SIGHUP are passed on; ranks die with the launcher. Cores are
///   shared out by OMP_NUM_THREADS, unless it is set.
/// - Else: a run of one rank in this process.
///
/// `--ranks N` is taken out of the arguments. From here on an exception that main does not catch ends the process with
/// `dovetail: message` on stderr and the exit code of the Error, 1 for other exceptions.
/// @throws Error(arguments) for a bad `--ranks`, or a bad or contradicting environment.
class Launch {
 public:
  Launch(int& argc, char** argv) {
    std::set_terminate(detail::fail_with_current_exception);
    const std::optional<int> wanted = detail::take_ranks(argc, argv);
    const std::optional<Ranks> launched =
        launched_ranks([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
    if (launched) {
      if (wanted && *wanted != launched->world_size) {
        throw Error(ExitCode::arguments, "--ranks " + std::to_string(*wanted) + " contradicts the launcher's " +
                                             std::to_string(launched->world_size) +
                                             " ranks; leave --ranks away where a launcher starts the program.");
      }
      bind_life_to_launcher();
      detail::known_ranks() = *launched;
    } else if (wanted.value_or(1) > 1) {
      const int code = detail::Supervisor().run(argv, *wanted);
      std::cout.flush();
      std::fflush(nullptr);
      std::_Exit(code);
    }
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  [[nodiscard]] const Ranks& ranks() const { return current_ranks(); }

 private:
  static void bind_life_to_launcher() {
    const char* launcher = std::getenv("DOVETAIL_LAUNCHER");
    if (launcher == nullptr) return;
    const std::string parent = std::to_string(::getppid());
    if (parent == launcher) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (parent == std::to_string(::getppid())) return;
    } else if (::kill(static_cast<pid_t>(std::strtol(launcher, nullptr, 10)), 0) == 0) {
      throw Error(ExitCode::arguments,
                  "this program was started by a rank of another run and would take that rank's place; unset RANK, "
                  "WORLD_SIZE, DOVETAIL_STORE and DOVETAIL_LAUNCHER for it.");
    }
    std::_Exit(128 + SIGTERM);  // the launcher ended before this rank could tie itself to it
  }
};

}  // namespace dovetail
