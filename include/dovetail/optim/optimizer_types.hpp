// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <dovetail/optim/scheduled.hpp>

#include <concepts>
#include <memory>
#include <tuple>
#include <type_traits>

namespace dovetail {

/// The optimizers' types of a Task, as a list for the rules.
template <class... Optimizers>
struct OptimizerTypes {
  static constexpr std::size_t size = sizeof...(Optimizers);
};

namespace detail {

template <class... Lists>
struct Joined;
template <>
struct Joined<> {
  using type = OptimizerTypes<>;
};
template <class... A>
struct Joined<OptimizerTypes<A...>> {
  using type = OptimizerTypes<A...>;
};
template <class... A, class... B, class... Rest>
struct Joined<OptimizerTypes<A...>, OptimizerTypes<B...>, Rest...> : Joined<OptimizerTypes<A..., B...>, Rest...> {};

/// What configure_optimizers may not return has no optimizers.
template <class Result>
struct TypesOf {
  static constexpr bool known = false;
  using type = OptimizerTypes<>;
};
template <std::derived_from<torch::optim::Optimizer> Optimizer>
struct TypesOf<Optimizer> {
  static constexpr bool known = true;
  using type = OptimizerTypes<Optimizer>;
};
template <std::derived_from<torch::optim::Optimizer> Optimizer>
struct TypesOf<std::unique_ptr<Optimizer>> : TypesOf<Optimizer> {};
template <std::derived_from<torch::optim::Optimizer> Optimizer>
struct TypesOf<std::shared_ptr<Optimizer>> : TypesOf<Optimizer> {};
template <class Optimizer, class Schedule>
struct TypesOf<Scheduled<Optimizer, Schedule>> : TypesOf<Optimizer> {};
template <class... Each>
struct TypesOf<std::tuple<Each...>> {
  static constexpr bool known = sizeof...(Each) > 0 && (TypesOf<std::remove_cvref_t<Each>>::known && ...);
  using type = typename Joined<typename TypesOf<std::remove_cvref_t<Each>>::type...>::type;
};

}  // namespace detail

/// May configure_optimizers return R: one optimizer by value, unique_ptr or shared_ptr, `scheduled(...)`, or a tuple of
/// these?
template <class R>
concept OptimizerResult = detail::TypesOf<std::remove_cvref_t<R>>::known;

/// The types of the optimizers in such a result: `OptimizerTypes<AdamW, SGD>`.
template <class R>
using optimizer_types_of = typename detail::TypesOf<std::remove_cvref_t<R>>::type;

}  // namespace dovetail
