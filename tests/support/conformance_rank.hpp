// SPDX-License-Identifier: Apache-2.0
// Cases of the conformance table that need ranks: each is a function of a rank, all run in one group of processes.
#pragma once

#include <dovetail/comm/gather_text.hpp>
#include <dovetail/launch/launch.hpp>

#include <algorithm>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "support/run_self.hpp"

namespace conformance {

struct Rank {
  support::Checks& check;
  dovetail::Communicator& comm;
  std::string name;  // of the case

  int rank() const { return comm.rank(); }
  int size() const { return comm.size(); }
  void that(bool holds, const std::string& what) {
    check.that(holds, name + ": rank " + std::to_string(rank()) + ": " + what);
  }
  void near(double difference, double tolerance, const std::string& what) {
    that(difference <= tolerance, what + " differs by " + std::to_string(difference));
  }
  bool same_everywhere(const torch::Tensor& tensor) {
    const torch::Tensor mine = tensor.detach().reshape({-1}).contiguous();
    const std::string bits(static_cast<const char*>(mine.const_data_ptr()), mine.nbytes());
    const auto all = dovetail::all_gather_text(comm, bits);
    return std::all_of(all.begin(), all.end(), [&](const std::string& other) { return other == all.front(); });
  }
};

struct Case {
  std::string name;  ///< begins with the rows that it holds
  std::function<void(Rank&)> run;
};

/// Runs the cases whose ids are wanted, or all; a line for each on rank 0.
inline int run_cases(const std::vector<Case>& cases, const std::vector<std::string>& wanted) {
  torch::set_num_threads(1);
  support::Checks check;
  dovetail::Communicator comm = dovetail::Communicator::connect(dovetail::current_ranks());
  for (const Case& one : cases) {
    const bool chosen = wanted.empty() || std::any_of(wanted.begin(), wanted.end(), [&](const std::string& id) {
                          return (one.name + " ").find(id + " ") != std::string::npos;
                        });
    if (!chosen) continue;
    Rank me{check, comm, one.name};
    try {
      one.run(me);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      me.that(false, text.substr(0, text.find('\n')));
    }
    if (comm.rank() == 0) std::cout << "done   " << one.name << "\n" << std::flush;
    comm.barrier();
  }
  const int code = check.summary();
  comm.barrier();
  return code;
}

/// A program of such cases: starts itself with `fewest` ranks up to 3 (4 with DOVETAIL_LONG). By hand, for all or some:
/// `program --ranks 2 run [id...]`.
inline int main_of_cases(int argc, char** argv, const std::vector<Case>& cases, int fewest = 1) {
  if (argc > 1) {
    ::alarm(280);
    dovetail::Launch launch(argc, argv);
    return run_cases(cases, {argv + 2, argv + argc});
  }
  ::setenv("OMP_NUM_THREADS", "1", 1);
  support::Checks check;
  for (int ranks = fewest; ranks <= (support::long_tests() ? 4 : 3); ++ranks) {
    const auto run = support::run_self({"--ranks", std::to_string(ranks), "run"}, {}, 290);
    if (run.code == 0) std::cout << run.output;
    check.ended(run, 0, std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks"));
  }
  return check.summary();
}

}  // namespace conformance
