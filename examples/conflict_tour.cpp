// SPDX-License-Identifier: Apache-2.0
// A tour of the built-in pairs that are refused, each with its rule's text. To see one as a compiler prints it:
//   g++ -std=c++20 -fsyntax-only -Iinclude -DSTRATEGY=FSDP '-DPRECISION=Apex<O2>' examples/conflict_tour.cpp
// docs/conflicts.md shows them all; the tests generate it with such lines.
#include <dovetail/core/report.hpp>
#include <dovetail/registry.hpp>

#include <cstdio>
#include <utility>

namespace dovetail {

#ifdef STRATEGY
void construct() {
  [[maybe_unused]] detail::PairReport<STRATEGY, PRECISION> report;
}  // as Trainer's constructor has it
#endif

}  // namespace dovetail

int main() {
  int refused = 0;
  for (const dovetail::Cell& cell : dovetail::matrix<>) {
    if (cell.verdict) continue;
    ++refused;
    std::printf("%.*s with %.*s\n  %.*s\n", int(cell.strategy.size()), cell.strategy.data(), int(cell.precision.size()),
                cell.precision.data(), int(cell.verdict.text.size()), cell.verdict.text.data());
  }
  std::printf("%d of %zu pairs are refused\n", refused, std::size(dovetail::matrix<>));
  return refused > 0 ? 0 : 1;
}
