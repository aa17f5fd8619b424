// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace dovetail {

/// When a rule is judged: as soon as the pair of policies is known and a trainer is constructed; when fit knows the
/// Task; or when fit knows its options, before anything starts.
enum class When { type, fit, start };

/// A rule's row in the documentation.
struct RuleRow {
  std::string_view id;
  When when{};
  std::string_view refused;
};

/// A verdict: the first rule that was violated and what to tell the user; both empty if none was.
/// `text` is one line: the rule's id, the reason, and as its last sentence the cure.
struct Verdict {
  std::string_view rule;
  std::string_view text;

  constexpr explicit operator bool() const { return rule.empty(); }
};

/// The cure in a rule's text: its last sentence.
constexpr std::string_view cure_of(std::string_view text) {
  const auto start = text.rfind(". ");
  return start == std::string_view::npos ? std::string_view{} : text.substr(start + 2);
}

namespace detail {

template <class... Rules>
struct RuleList {};

/// The first of `Rules` that these arguments violate.
template <class... Rules, class... Arguments>
constexpr Verdict first_violated(RuleList<Rules...>, const Arguments&... arguments) {
  Verdict verdict;
  (void)((Rules::violated(arguments...) ? (verdict = {Rules::row.id, Rules::text}, true) : false) || ...);
  return verdict;
}

/// The same for rules that are judged on types.
template <class... Types, class... Rules>
constexpr Verdict first_violated_by(RuleList<Rules...>) {
  Verdict verdict;
  (void)((Rules::template violated<Types...> ? (verdict = {Rules::row.id, Rules::text}, true) : false) || ...);
  return verdict;
}

}  // namespace detail

}  // namespace dovetail
