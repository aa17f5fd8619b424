// SPDX-License-Identifier: Apache-2.0
// Every pair of the registry, on 1 to 4 ranks, against one device and against the same ranks emulated in one process;
// the same run twice; loss scales; dropout. One group of processes per number of ranks runs all cases. With
// DOVETAIL_LONG every pair runs every setting on every number of ranks, else on one of these.
//
// By hand: parity --ranks 3 run [precision...], for all or some precisions.
#include <dovetail/launch/launch.hpp>

#include "parity/cases.hpp"
#include "parity/repeats.hpp"
#include "support/run_self.hpp"

namespace {

using namespace parity;

int run_rank(const std::set<std::string>& wanted) {
  torch::set_num_threads(1);
  auto comm = dt::Communicator::connect(dt::current_ranks());
  Report report(comm);
  References references(comm, report);
  std::vector<PairRow> rows = built_in_rows();
  std::erase_if(rows, [&](const PairRow& row) {
    return (comm.size() > 1 && row.strategy == "single") || (!wanted.empty() && !wanted.contains(row.precision));
  });

  std::set<std::string> precisions, strategies, inexact;
  for (const PairRow& row : rows) {
    precisions.insert(row.precision);
    strategies.insert(row.strategy);
    if (!row.strategy_traits.exact) inexact.insert(row.strategy);
  }
  const bool all_settings = support::long_tests();
  std::size_t runs = 0;
  for (const std::string& precision : precisions) {
    const auto number = std::size_t(std::distance(precisions.begin(), precisions.find(precision)));
    const auto some = parity_settings(comm.size(), number, all_settings), all_of_them = parity_settings(1, 0, true);
    std::vector<Ran> all;
    for (const PairRow& row : rows)
      if (row.precision == precision && row.strategy_traits.exact)
        for (const Setting& setting : row.strategy == "single" ? all_of_them : some)
          all.push_back({&row, setting, row.fit(setting, 1).front()});
    compare_ranks(comm, all, report);
    for (const Ran& ran : all) references.compare(ran);
    runs += all.size();
  }
  check_repeats(comm, rows, report);
  check_scales(comm, rows, report);

  if (comm.rank() == 0) {
    std::cout << comm.size() << (comm.size() == 1 ? " rank: " : " ranks: ") << rows.size() << " pairs (";
    for (const auto& strategy : strategies) std::cout << (strategy == *strategies.begin() ? "" : ", ") << strategy;
    std::cout << "): " << runs << " runs of 6 to 10 steps, each pair of several ranks in "
              << (all_settings ? "all settings" : "a fourth of the settings") << "\n"
              << "C-81 C-97 B040 equal to one device, whatever the strategy:\n";
    for (const auto& strategy : inexact) std::cout << "not compared, since it is not exact: " << strategy << "\n";
  }
  const int64_t failures = report.print();
  if (comm.rank() == 0)
    std::cout << comm.size() << (comm.size() == 1 ? " rank: " : " ranks: ") << failures << " wrong\n" << std::flush;
  comm.barrier();
  return failures == 0 ? 0 : 1;
}

int start_groups() {
  const std::vector<int> sizes{1, 2, 3, 4};
  // All at once: most of the time a rank waits for others.
  std::vector<std::unique_ptr<support::Program>> groups;
  for (int size : sizes)
    groups.push_back(std::make_unique<support::Program>(support::Words{"--ranks", std::to_string(size), "run"}));
  support::Checks check;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const support::Ended run = groups[i]->end(800);
    if (run.code == 0) std::cout << run.output;
    check.ended(run, 0, std::to_string(sizes[i]) + (sizes[i] == 1 ? " rank" : " ranks"));
  }
  return check.summary();
}

}  // namespace

int main(int argc, char** argv) {
  const dovetail::Launch launch(argc, argv);
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty()) return start_groups();
  return run_rank({words.begin() + 1, words.end()});
}
