// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <dovetail/launch/arguments.hpp>
#include <dovetail/launch/rank_outcomes.hpp>
#include <dovetail/launch/terminate.hpp>

#include <string>
#include <vector>

namespace {

/// A command line that take_ranks may change.
struct CommandLine {
  explicit CommandLine(std::vector<std::string> words) : words_(std::move(words)) {
    for (auto& word : words_) argv.push_back(word.data());
    argc = static_cast<int>(argv.size());
    argv.push_back(nullptr);
  }

  std::vector<std::string> left() const { return {argv.begin(), argv.begin() + argc}; }

  std::vector<std::string> words_;
  std::vector<char*> argv;
  int argc = 0;
};

std::string complaint(std::vector<std::string> words) {
  CommandLine line(std::move(words));
  try {
    (void)dovetail::detail::take_ranks(line.argc, line.argv.data());
  } catch (const dovetail::Error& error) {
    CHECK(error.code() == dovetail::ExitCode::arguments);
    return error.what();
  }
  return "no error";
}

using Words = std::vector<std::string>;
using Catch::Matchers::Contains;

}  // namespace

TEST_CASE("--ranks is taken out of the arguments", "[launch]") {
  for (const Words& words : {Words{"p", "--ranks", "3", "a", "b"}, Words{"p", "a", "--ranks", "3", "b"},
                             Words{"p", "a", "b", "--ranks", "3"}, Words{"p", "a", "--ranks=3", "b"}}) {
    CommandLine line(words);
    CHECK(dovetail::detail::take_ranks(line.argc, line.argv.data()) == 3);
    CHECK(line.left() == Words{"p", "a", "b"});
    CHECK(line.argv[3] == nullptr);
  }
  for (const Words& words :
       {Words{"p"}, Words{"p", "--rank", "3"}, Words{"p", "--", "--ranks", "3"}, Words{"p", "--ranksx"}}) {
    CommandLine line(words);
    CHECK_FALSE(dovetail::detail::take_ranks(line.argc, line.argv.data()));
    CHECK(line.left() == words);
  }
}

TEST_CASE("a bad --ranks is refused with its value", "[launch]") {
  for (const std::string bad : {"0", "-2", "abc", "", "2x", "1.5", " 2", "1025", "99999999999"}) {
    CAPTURE(bad);
    CHECK_THAT(complaint({"p", "--ranks", bad}), Contains("--ranks is \"" + bad + "\""));
    CHECK_THAT(complaint({"p", "--ranks=" + bad}), Contains("--ranks is \"" + bad + "\""));
  }
  CHECK_THAT(complaint({"p", "--ranks"}), Contains("--ranks needs the number of ranks"));
  CHECK_THAT(complaint({"p", "--ranks", "2", "--ranks=2"}), Contains("--ranks is given twice"));
}

TEST_CASE("the run fails for the rank that failed first, not for its victims", "[launch]") {
  using dovetail::detail::first_failure;
  using Outcomes = std::vector<dovetail::detail::Outcome>;
  const auto code = [](const Outcomes& outcomes) {
    const auto* found = first_failure(outcomes);
    return found == nullptr ? 0 : found->code;
  };
  CHECK(code({}) == 0);
  CHECK(code({{0, 0}, {1, 0}}) == 0);
  CHECK(code({{0, 0}, {1, 5}}) == 5);
  CHECK(code({{0, 5}, {1, 1}}) == 5);          // the first
  CHECK(code({{0, 8}, {1, 8}, {2, 5}}) == 5);  // victims were seen first
  CHECK(code({{0, 7}, {1, 137}}) == 137);
  CHECK(code({{0, 8}, {1, 7}}) == 7);          // both victims: who waited tells more
  CHECK(code({{0, 8}, {1, 143, true}}) == 8);  // dismissed by the launcher, no failure of its own
  CHECK(code({{0, 7}, {1, 137, true}}) == 7);
  CHECK(code({{0, 8}, {1, 75, true}}) == 8);
  CHECK(code({{0, 8}, {1, 139, true}}) == 139);  // crashed by itself while leaving
  CHECK(code({{0, 143}, {1, 8}}) == 143);        // ended from outside
  CHECK(code({{0, 75}, {1, 75}}) == 75);
}

TEST_CASE("an outcome is told in words", "[launch]") {
  CHECK(dovetail::detail::in_words({3, 5}) == "rank 3 ended with exit code 5");
  CHECK(dovetail::detail::in_words({1, 137}) == "rank 1 was ended by signal 9 (Killed)");
}

TEST_CASE("messages are valid JSON strings and lose LibTorch's stack", "[launch]") {
  CHECK(dovetail::detail::json_string("a\"b\\c\n\x01") == "\"a\\\"b\\\\c\\u000a\\u0001\"");
  CHECK(dovetail::detail::without_stack("bad shape\nException raised from f at g.cpp:1\nframe #0") == "bad shape");
  CHECK(dovetail::detail::without_stack("two\nlines") == "two\nlines");
}
