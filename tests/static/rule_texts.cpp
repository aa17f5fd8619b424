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
  return here.substr(0, here.rfind('/') + 1) + "../../include/dovetail/core/";
}

template <class... Rules>
std::multiset<std::string> texts(detail::RuleList<Rules...>) {
  return {std::string(Rules::text)...};
}

void merge(std::multiset<std::string>& into, const std::multiset<std::string>& more) {
  into.insert(more.begin(), more.end());
}

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream buffer;
  buffer << file.rdbuf();
  return buffer.str();
}

bool is_word(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

std::string word_at(const std::string& text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && is_word(text[end])) ++end;
  return text.substr(at, end - at);
}

/// The words in a header between two others.
std::set<std::string> names_in(const std::string& header, const std::string& from, const std::string& to) {
  const std::string text = read(folder() + header);
  std::set<std::string> names;
  for (std::size_t at = text.find(from); at < text.find(to); ++at)
    if (is_word(text[at]) && !is_word(text[at - 1])) names.insert(word_at(text, at));
  return names;
}

/// Each row of the tables: the name that is looked up is the name in the words, what is meant is a hook, and the probe
/// knows the first.
unsigned check_near_misses(const std::string& table, const std::string& row, const std::set<std::string>& probed,
                           const std::set<std::string>& hooks) {
  const std::string words = "dovetail-E022: ", use = "is not a hook. Use ";
  unsigned rows = 0;
  for (std::size_t at = table.find(row); at != std::string::npos; at = table.find(row, at + 1), ++rows) {
    const std::string name = word_at(table, at + row.size());
    const std::size_t text = table.find(words, at);
    check::that(word_at(table, text + words.size()) == name, "the words of " + name + " are about another name");
    check::that(probed.count(name) == 1, name + " is not in the probe");
    const std::string meant = word_at(table, table.find(use, text) + use.size());
    check::that(hooks.count(meant) == 1, meant + ", which " + name + " is said to mean, is no hook");
  }
  return rows;
}

/// Public members of torch::nn::Module: a Task may be a module.
constexpr const char* module_names[]{"apply",
                                     "as",
                                     "buffers",
                                     "children",
                                     "clone",
                                     "eval",
                                     "forward",
                                     "is_training",
                                     "is_serializable",
                                     "load",
                                     "modules",
                                     "name",
                                     "named_buffers",
                                     "named_children",
                                     "named_modules",
                                     "named_parameters",
                                     "parameters",
                                     "pretty_print",
                                     "register_buffer",
                                     "register_module",
                                     "register_parameter",
                                     "replace_module",
                                     "save",
                                     "to",
                                     "train",
                                     "unregister_module",
                                     "zero_grad"};

}  // namespace

int main() {
  std::multiset<std::string> compiler, run_time;
  for (const char* header : {"place_rules.hpp", "policy_rules.hpp", "pair_rules.hpp", "fit_rules.hpp"})
    merge(compiler, literals(folder() + header));
  merge(run_time, texts(detail::PolicyRules{}));
  merge(run_time, texts(detail::PairRules{}));
  merge(run_time, texts(detail::FitRules{}));
  // What a policy's member is called only the compiler can say, so its words are others (below, with the near misses).
  std::erase_if(run_time, [](const std::string& text) { return text.starts_with("dovetail-E022"); });
  for (const std::string& text : run_time) check::that(compiler.count(text) == 1, "not the compiler's words: " + text);
  for (const std::string& text : compiler) check::that(run_time.count(text) == 1, "not the words of run time: " + text);

  // Id, reason, cure, in one line, and what it is about within the first 80 characters.
  std::multiset<std::string> all = run_time;
  merge(all, texts(detail::StartRules{}));
  merge(all, {std::string(rules::StrategyAlmostHook::text), std::string(rules::PrecisionAlmostHook::text)});
  for (const char* header : {"hooks.hpp", "task_hooks.hpp", "logger_hooks.hpp", "hook_rules.hpp", "near_misses.hpp",
                             "near_misses_of_steps.hpp", "near_misses_of_policies.hpp", "almost_hooks.hpp"})
    merge(all, literals(folder() + header));
  for (const std::string& text : all) {
    check::that(text.starts_with("dovetail-E0") && text.substr(13, 2) == ": ", "starts with an id: " + text);
    check::that(cure_of(text).starts_with("Use"), "ends with a cure: " + text);
    check::that(text.find('\n') == std::string::npos && text.size() <= 240, "one line: " + text);
    check::that(text.find_first_of("[]") == std::string::npos, "no square brackets: " + text);
  }
  check::that(all.size() > 100, "the tables were read");

  const std::set<std::string> probed = names_in("probe.hpp", "  int ", "struct ProbeOf");
  const std::set<std::string> of_policies =
      names_in("policy_base.hpp", "struct StrategyBase", "template <class Policy>");
  std::set<std::string> hooks = probed;
  hooks.insert(of_policies.begin(), of_policies.end());
  const std::string row = "requires { &Probe<T>::";
  const unsigned rows =
      check_near_misses(read(folder() + "near_misses.hpp"), row, probed, hooks) +
      check_near_misses(read(folder() + "near_misses_of_steps.hpp"), row, probed, hooks) +
      check_near_misses(read(folder() + "near_misses_of_policies.hpp"), "requires { &PolicyProbe<T>::",
                        names_in("near_misses_of_policies.hpp", "  int ", "struct PolicyProbeOf"), of_policies);
  check::that(rows > 130, "the near misses were read");
  for (const char* name : module_names) check::that(probed.count(name) == 0, name);
  std::printf("%u near misses\n", rows);
  std::printf("%zu texts of rules, %zu of them the same for the compiler and at run time\n", all.size(),
              run_time.size());
  return check::summary("rule_texts");
}
