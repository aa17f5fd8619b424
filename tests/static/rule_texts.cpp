// SPDX-License-Identifier: Apache-2.0

// A static_assert takes nothing but a literal, so each text is written once for the compiler and once for run time.
// Here the headers are read, and the two have to be the same; and every text has the form that the others have.
#include "check.hpp"

#include <dovetail/core/rules.hpp>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

using namespace dovetail;

namespace {

/// The literals of every static_assert with a rule's id in that header, adjacent literals joined.
std::multiset<std::string> literals(const std::string& path) {
  std::ifstream file(path);
  std::stringstream buffer;
  buffer << file.rdbuf();
  const std::string text = buffer.str();
  check::that(!text.empty(), path);
  std::multiset<std::string> found;
  for (std::size_t at = text.find("static_assert("); at != std::string::npos;
       at = text.find("static_assert(", at + 1)) {
    std::string literal;
    bool inside = false;
    for (std::size_t i = at; text.compare(i, 2, ");") != 0 || inside; ++i) {
      if (inside && text[i] == '\\') {
        literal += text[++i];
      } else if (text[i] == '"') {
        inside = !inside;
      } else if (inside) {
        literal += text[i];
      }
    }
    found.insert(literal);
  }
  return found;
}

std::string folder() {
  const std::string here = __FILE__;
  return here.substr(0, here.rfind("tests/")) + "include/dovetail/core/";
}

template <class... Rules>
std::multiset<std::string> texts(detail::RuleList<Rules...>) {
  return {std::string(Rules::text)...};
}

void merge(std::multiset<std::string>& into, const std::multiset<std::string>& more) {
  into.insert(more.begin(), more.end());
}

}  // namespace

int main() {
  std::multiset<std::string> compiler, run_time;
  for (const char* header : {"place_rules.hpp", "policy_rules.hpp", "pair_rules.hpp", "fit_rules.hpp"})
    merge(compiler, literals(folder() + header));
  merge(run_time, texts(detail::PolicyRules{}));
  merge(run_time, texts(detail::PairRules{}));
  merge(run_time, texts(detail::FitRules{}));
  for (const std::string& text : run_time) check::that(compiler.count(text) == 1, "not the compiler's words: " + text);
  for (const std::string& text : compiler) check::that(run_time.count(text) == 1, "not the words of run time: " + text);

  // Id, reason, cure, in one line, and what it is about within the first 80 characters.
  std::multiset<std::string> all = run_time;
  merge(all, texts(detail::StartRules{}));
  for (const char* header : {"hooks.hpp", "task_hooks.hpp", "logger_hooks.hpp", "hook_rules.hpp", "near_misses.hpp",
                             "near_misses_of_steps.hpp"})
    merge(all, literals(folder() + header));
  for (const std::string& text : all) {
    check::that(text.starts_with("dovetail-E0") && text.substr(13, 2) == ": ", "starts with an id: " + text);
    check::that(cure_of(text).starts_with("Use"), "ends with a cure: " + text);
    check::that(text.find('\n') == std::string::npos && text.size() <= 240, "one line: " + text);
    check::that(text.find_first_of("[]") == std::string::npos, "no square brackets: " + text);
  }
  check::that(all.size() > 100, "the tables were read");
  std::printf("%zu texts of rules, %zu of them the same for the compiler and at run time\n", all.size(),
              run_time.size());
  return check::summary("rule_texts");
}
