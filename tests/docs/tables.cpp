// SPDX-License-Identifier: Apache-2.0
// Prints the generated parts of the documentation, each after a line "== name".
#include <dovetail/core/hook_rules.hpp>
#include <dovetail/core/rules.hpp>
#include <dovetail/core/verdict.hpp>
#include <dovetail/registry.hpp>

#include <cstdio>
#include <string>
#include <vector>

using namespace dovetail;

static std::string text(std::string_view view) {
  return std::string(view);
}

template <class... S, class... P>
static void print_matrix(PolicyList<S...>, PolicyList<P...>) {
  std::printf("== matrix\n| |");
  (std::printf(" `%s` |", text(S::name).c_str()), ...);
  std::printf("\n|---|");
  ((void)sizeof(S), ..., (void)0);
  for (std::size_t i = 0; i < sizeof...(S); ++i) std::printf(":-:|");
  std::printf("\n");
  const auto row = []<class Precision>(std::type_identity<Precision>) {
    std::printf("| `%s` |", text(Precision::name).c_str());
    (std::printf(" %s |", compatible<S, Precision> ? "yes" : text(verdict<S, Precision>.rule).substr(9).c_str()), ...);
    std::printf("\n");
  };
  (row(std::type_identity<P>{}), ...);
}

static void print_rules() {
  std::printf("== rules\n| rule | when | refused |\n|---|---|---|\n");
  const auto print = [](const RuleRow& row) {
    const char* when = row.when == When::type  ? "a trainer is constructed"
                       : row.when == When::fit ? "fit is instantiated"
                                               : "fit starts (exit code 2)";
    std::printf("| %s | %s | %s |\n", text(row.id).c_str(), when, text(row.refused).c_str());
  };
  for (const RuleRow& row : rule_rows) print(row);
  for (const RuleRow& row : hook_rule_rows) print(row);
}

int main() {
  print_matrix(BuiltInStrategies{}, BuiltInPrecisions{});
  print_rules();
  std::printf("== refused\n");
  for (const Cell& cell : matrix<>)
    if (!cell.verdict) std::printf("%s %s\n", text(cell.strategy).c_str(), text(cell.precision).c_str());
}
