// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <dovetail/core/verdict.hpp>
#include <dovetail/launch/error.hpp>
#include <dovetail/precision/apex.hpp>
#include <dovetail/precision/fp32.hpp>
#include <dovetail/precision/fp64.hpp>
#include <dovetail/precision/master_weights.hpp>
#include <dovetail/precision/mixed.hpp>
#include <dovetail/precision/true.hpp>
#include <dovetail/strategy/ddp.hpp>
#include <dovetail/strategy/fsdp.hpp>
#include <dovetail/strategy/sharded.hpp>
#include <dovetail/strategy/single_device.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

/// The built-in policies, the matrix of all pairs, and the choice of a pair by name at run time. Torch-free.

namespace dovetail {

/// A pair of policies as a value without content, so that it can be handed to a generic callable.
template <class S, class P>
struct Pair {
  using Strategy = S;
  using Precision = P;
};

/// The pairs that a program can choose from: `PairList<Pair<DDP, FP32>, Pair<FSDP, BF16Mixed>>`.
template <class... Pairs>
struct PairList {};

template <class... Policies>
struct PolicyList {};

/// A new built-in policy is one entry here, and the parity test takes it from there.
using BuiltInStrategies = PolicyList<SingleDevice, DDP, Sharded<1>, Sharded<2>, FSDP>;
using BuiltInPrecisions = PolicyList<FP32, FP64, BF16Mixed, FP16Mixed, BF16True, FP16True, Apex<O0>, Apex<O1>, Apex<O2>,
                                     Apex<O3>, MasterWeights<BF16>, MasterWeights<FP16>>;

namespace detail {

template <class... Lists>
struct Concatenated;
template <class... A>
struct Concatenated<PairList<A...>> {
  using type = PairList<A...>;
};
template <class... A, class... B, class... Rest>
struct Concatenated<PairList<A...>, PairList<B...>, Rest...> : Concatenated<PairList<A..., B...>, Rest...> {};

template <class Strategies, class Precisions>
struct Product;
template <class... S, class... P>
struct Product<PolicyList<S...>, PolicyList<P...>> {
  template <class One>
  using Row = PairList<Pair<One, P>...>;
  using type = typename Concatenated<PairList<>, Row<S>...>::type;
};

}  // namespace detail

/// Every Strategy of one list with every Precision of the other.
template <class Strategies, class Precisions>
using AllPairs = typename detail::Product<Strategies, Precisions>::type;

/// Every built-in pair, refused ones too.
using BuiltInPairs = AllPairs<BuiltInStrategies, BuiltInPrecisions>;

/// One cell of the matrix.
struct Cell {
  std::string_view strategy;
  std::string_view precision;
  Verdict verdict;
};

/// Judges a pair by its policies alone.
template <class S, class P>
struct JudgePair {
  static constexpr Verdict verdict = dovetail::verdict<S, P>;
};

/// Judges a pair together with the optimizers of a Task: `JudgeWith<AdamW>::Judge`.
template <class... Optimizers>
struct JudgeWith {
  template <class S, class P>
  struct Judge {
    static constexpr Verdict verdict = [] {
      if constexpr (compatible<S, P>)
        return fit_verdict<S, P, Optimizers...>;
      else
        return dovetail::verdict<S, P>;
    }();
  };
};

namespace detail {

template <template <class, class> class Judge, class... Pairs>
consteval std::array<Cell, sizeof...(Pairs)> cells_of(PairList<Pairs...>) {
  return {Cell{Pairs::Strategy::name, Pairs::Precision::name,
               Judge<typename Pairs::Strategy, typename Pairs::Precision>::verdict}...};
}

}  // namespace detail

/// The verdict on each pair of a list, in its order: the documentation and the tests are made from it.
template <class Pairs = BuiltInPairs, template <class, class> class Judge = JudgePair>
inline constexpr auto matrix = detail::cells_of<Judge>(Pairs{});

namespace detail {

/// The names in a column of the matrix for which `keep` holds, each once: "ddp, fsdp".
template <class Keep>
std::string names(std::span<const Cell> cells, std::string_view Cell::*column, Keep keep) {
  std::string list;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    bool first = keep(cells[i]);
    for (std::size_t j = 0; j < i && first; ++j) first = !(keep(cells[j]) && cells[j].*column == cells[i].*column);
    if (first) list.append(list.empty() ? "" : ", ").append(cells[i].*column);
  }
  return list.empty() ? "none" : list;
}

/// Why no pair of these names can be run, for the person who typed them.
inline std::string why_not(std::span<const Cell> cells, std::string_view strategy, std::string_view precision) {
  const auto all = [](const Cell&) { return true; };
  const auto fits_strategy = [&](const Cell& cell) { return cell.strategy == strategy && cell.verdict; };
  const auto fits_precision = [&](const Cell& cell) { return cell.precision == precision && cell.verdict; };
  bool knows_strategy = false, knows_precision = false;
  std::string reason;
  for (const Cell& cell : cells) {
    knows_strategy |= cell.strategy == strategy;
    knows_precision |= cell.precision == precision;
    if (cell.strategy == strategy && cell.precision == precision) reason = cell.verdict.text;
  }
  const auto unknown = [](std::string kind, std::string_view name, const std::string& known) {
    return "no " + kind + " is called '" + std::string(name) + "'. Use one of: " + known + ".";
  };
  if (!knows_strategy) return unknown("strategy", strategy, names(cells, &Cell::strategy, all));
  if (!knows_precision) return unknown("precision", precision, names(cells, &Cell::precision, all));
  if (reason.empty()) reason = "this program is not built for that pair.";
  return std::string(strategy) + " with " + std::string(precision) + ": " + reason + " With " + std::string(strategy) +
         " fit: " + names(cells, &Cell::precision, fits_strategy) + "; with " + std::string(precision) +
         " fit: " + names(cells, &Cell::strategy, fits_precision) + ".";
}

template <class R>
struct FirstResult {
  std::optional<R> value{};
  template <class F, class P>
  void run(F& f, P pair) {
    value.emplace(f(pair));
  }
  R take() { return std::move(*value); }
};
template <>
struct FirstResult<void> {
  template <class F, class P>
  void run(F& f, P pair) {
    f(pair);
  }
  void take() {}
};

/// What f returns for the first pair that it is instantiated for.
template <template <class, class> class Judge, class F>
consteval auto result_for(PairList<>) {
  return std::type_identity<void>{};
}
template <template <class, class> class Judge, class F, class First, class... Rest>
consteval auto result_for(PairList<First, Rest...>) {
  if constexpr (Judge<typename First::Strategy, typename First::Precision>::verdict)
    return std::type_identity<std::invoke_result_t<F&, First>>{};
  else
    return result_for<Judge, F>(PairList<Rest...>{});
}

template <template <class, class> class Judge, class First, class O, class F>
bool run_if_named(std::string_view strategy, std::string_view precision, O& outcome, F& f) {
  if constexpr (Judge<typename First::Strategy, typename First::Precision>::verdict) {
    if (First::Strategy::name != strategy || First::Precision::name != precision) return false;
    outcome.run(f, First{});
    return true;
  } else {
    return false;
  }
}

template <template <class, class> class Judge, class F, class... Each>
auto dispatch(PairList<Each...> pairs, std::string_view strategy, std::string_view precision, F& f) {
  using R = typename decltype(result_for<Judge, F>(pairs))::type;
  FirstResult<R> outcome;
  if (!(run_if_named<Judge, Each>(strategy, precision, outcome, f) || ...))
    throw Error(ExitCode::arguments, why_not(matrix<PairList<Each...>, Judge>, strategy, precision));
  return outcome.take();
}

}  // namespace detail

/// Calls `f(Pair<S, P>{})` for the pair with these names and returns what it returns. f is instantiated only for pairs
/// that the judge allows, and returns the same type for each:
///
///     dispatch_pair("fsdp", "bf16-mixed", []<class S, class P>(Pair<S, P>) { Trainer<S, P> trainer; ... });
///
/// @tparam Pairs  what there is to choose from; a program that names three pairs compiles three
/// @throws Error  with ExitCode::arguments: for an unknown name with the known ones, for a refused pair with the rule's
///                text and with what fits
template <class Pairs = BuiltInPairs, template <class, class> class Judge = JudgePair, class F>
auto dispatch_pair(std::string_view strategy, std::string_view precision, F&& f) {
  return detail::dispatch<Judge>(Pairs{}, strategy, precision, f);
}

}  // namespace dovetail
