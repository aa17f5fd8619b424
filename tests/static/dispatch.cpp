// SPDX-License-Identifier: Apache-2.0

// The choice of a pair by name: what is instantiated, what is returned, and the words for what does not fit.
#include "check.hpp"

#include <dovetail/registry.hpp>
#include <string>

using namespace dovetail;

namespace {

/// Fails to compile for a pair that is refused, so it also proves what is instantiated.
template <class... Optimizers>
struct NameOf {
  template <class S, class P>
  std::string operator()(Pair<S, P>) const {
    static_assert(accepts<S, P, Optimizers...>, "instantiated for a refused pair");
    return std::string(S::name) + "+" + std::string(P::name);
  }
};

std::string refusal(auto call) {
  try {
    call();
  } catch (const Error& error) {
    check::that(error.code() == ExitCode::arguments, "the exit code is that of bad arguments");
    return error.what();
  }
  return "nothing was thrown";
}

struct Whole {};  // an optimizer that is not element-wise
struct LBFGS {};

struct Averaging final : StrategyBase {
  static constexpr std::string_view name = "averaging";
  static constexpr StrategyTraits traits{.exact = false};
};
using Three = PairList<Pair<DDP, FP32>, Pair<FSDP, FP64>, Pair<Averaging, BF16Mixed>>;

}  // namespace

template <>
inline constexpr OptimizerTraits dovetail::optimizer_traits<LBFGS>{.requires_closure = true};

int main() {
  unsigned run = 0;
  for (const Cell& cell : matrix<>) {
    if (!cell.verdict) {
      const std::string text = refusal([&] { dispatch_pair(cell.strategy, cell.precision, NameOf<>{}); });
      check::contains(text, cell.verdict.text);
      check::contains(text, "fp16-mixed");
      check::that(text.find('\n') == std::string::npos, "one line");
    } else {
      const std::string both = std::string(cell.strategy) + "+" + std::string(cell.precision);
      check::that(dispatch_pair(cell.strategy, cell.precision, NameOf<>{}) == both, both);
      ++run;
    }
  }
  check::that(run == 48, "48 pairs were reached by name");

  const std::string apex = refusal([] { dispatch_pair("fsdp", "apex-o2", NameOf<>{}); });
  check::contains(apex, "fsdp with apex-o2: dovetail-E001: ");
  check::contains(apex,
                  "With fsdp fit: fp32, fp64, bf16-mixed, fp16-mixed, bf16-true, fp16-true, master-bf16, master-fp16; "
                  "with apex-o2 fit: single, ddp.");
  check::that(refusal([] { dispatch_pair("fsdpp", "fp32", NameOf<>{}); }) ==
                  "no strategy is called 'fsdpp'. Use one of: single, ddp, sharded-1, sharded-2, fsdp.",
              "an unknown strategy");
  check::contains(refusal([] { dispatch_pair("ddp", "fp8", NameOf<>{}); }),
                  "no precision is called 'fp8'. Use one of: fp32, fp64, bf16-mixed,");
  check::contains(refusal([] { dispatch_pair("", "", NameOf<>{}); }), "no strategy is called ''");
  check::contains(refusal([] { dispatch_pair("DDP", "fp32", NameOf<>{}); }), "no strategy is called 'DDP'");

  // A list of one's own, with a policy of one's own.
  check::that(dispatch_pair<Three>("averaging", "bf16-mixed", NameOf<>{}) == "averaging+bf16-mixed", "a user's policy");
  check::that(refusal([] { dispatch_pair<Three>("ddp", "fp64", NameOf<>{}); }) ==
                  "ddp with fp64: this program is not built for that pair. With ddp fit: fp32; with fp64 fit: fsdp.",
              "a pair that is not in the list");
  check::contains(refusal([] { dispatch_pair<Three>("single", "fp32", NameOf<>{}); }),
                  "Use one of: ddp, fsdp, averaging.");

  // With the optimizers of a Task.
  const auto with_whole = [](auto s, auto p) {
    return dispatch_pair<BuiltInPairs, JudgeWith<Whole>::Judge>(s, p, NameOf<Whole>{});
  };
  check::that(with_whole("ddp", "apex-o2") == "ddp+apex-o2", "an optimizer over whole tensors under DDP");
  check::contains(refusal([&] { with_whole("fsdp", "fp32"); }), "dovetail-E006");
  check::contains(refusal([&] { with_whole("fsdp", "fp32"); }), "With fsdp fit: none; with fp32 fit: single, ddp, sharded-1, sharded-2.");
  check::contains(refusal([&] { with_whole("fsdp", "apex-o2"); }), "dovetail-E001");
  const auto with_closure = [](auto s, auto p) {
    return dispatch_pair<BuiltInPairs, JudgeWith<LBFGS>::Judge>(s, p, NameOf<LBFGS>{});
  };
  check::that(with_closure("ddp", "bf16-mixed") == "ddp+bf16-mixed", "LBFGS under DDP");
  check::contains(refusal([&] { with_closure("ddp", "fp16-mixed"); }), "dovetail-E005");

  // f may return nothing; what it throws passes through.
  unsigned calls = 0;
  dispatch_pair("single", "fp64", [&](auto) { ++calls; });
  check::that(calls == 1, "called once");
  bool passed = false;
  try {
    dispatch_pair("single", "fp64", [](auto) { throw 7; });
  } catch (int seven) {
    passed = seven == 7;
  }
  check::that(passed, "an exception of f passes through");

  std::puts("60 pairs by name, unknown names, lists of one's own, optimizers of a Task");
  return check::summary("dispatch");
}
