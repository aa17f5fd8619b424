// SPDX-License-Identifier: Apache-2.0

// The full matrix: which of the 5 x 12 built-in pairs fit, and the rule that refuses the others.
#include "check.hpp"

#include <dovetail/registry.hpp>

using namespace dovetail;

namespace {

constexpr std::string_view expected(std::string_view strategy, std::string_view precision) {
  const bool apex = precision.starts_with("apex-");
  if (apex && strategy == "fsdp") return "dovetail-E001";
  if (apex && strategy.starts_with("sharded-")) return "dovetail-E002";
  return "";
}

constexpr bool matrix_is_right() {
  for (const Cell& cell : matrix<>)
    if (cell.verdict.rule != expected(cell.strategy, cell.precision)) return false;
  return true;
}

constexpr unsigned count(std::string_view rule) {
  unsigned n = 0;
  for (const Cell& cell : matrix<>) n += cell.verdict.rule == rule;
  return n;
}

constexpr bool names_are_distinct() {
  for (std::size_t i = 0; i < matrix<>.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (matrix<>[i].strategy == matrix<>[j].strategy && matrix<>[i].precision == matrix<>[j].precision) return false;
  return true;
}

static_assert(matrix<>.size() == 5 * 12 && matrix_is_right() && names_are_distinct());
static_assert(count("") == 48 && count("dovetail-E001") == 4 && count("dovetail-E002") == 8);

// Apex is refused with every sharded strategy, also as a type rather than a flag; FSDP takes a scaler only if it is
// collective: FP16Mixed fits.
static_assert(!compatible<Sharded<1>, Apex<O1>> && !compatible<Sharded<2>, Apex<O2>> && !compatible<FSDP, Apex<O0>>);
static_assert(compatible<FSDP, FP16Mixed> && compatible<FSDP, MasterWeights<FP16>>);
static_assert(compatible<Sharded<2>, MasterWeights<FP16>> && compatible<DDP, Apex<O2>>);

}  // namespace

int main() {
  for (const Cell& cell : matrix<>) {
    check::that(static_cast<bool>(cell.verdict) == cell.verdict.text.empty(), "a refusal has a text, and nothing else");
    check::that(cell.verdict.text.starts_with(cell.verdict.rule), "a text starts with its rule");
    std::printf("%-10.*s %-12.*s %.*s\n", int(cell.strategy.size()), cell.strategy.data(), int(cell.precision.size()),
                cell.precision.data(), cell.verdict ? 4 : int(cell.verdict.rule.size()),
                cell.verdict ? "fits" : cell.verdict.rule.data());
  }
  std::puts("T24 T25 T27 T28 P50 60 pairs: 48 fit, FSDP with Apex is E001, Sharded with Apex is E002");
  return check::summary("matrix");
}
