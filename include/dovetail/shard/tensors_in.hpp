// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <concepts>
#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>

namespace dovetail::detail {

/// What is known, from the type alone, of the tensors in a value: there are none; they can be visited; or it is a class
/// that cannot be looked into.
enum class TensorsIn { none, visible, hidden };

/// Converts to anything: stands for a member while the members of an aggregate are counted.
struct AnyMember {
  template <class T>
  operator T() const;
};

template <class T, std::size_t... I>
consteval bool takes_members(std::index_sequence<I...>) {
  return requires {
    T{(static_cast<void>(I), AnyMember{})...};
  };
}

/// How many members an aggregate has; more than eight are not counted.
template <class T, std::size_t N = 8>
consteval std::size_t members_of() {
  if constexpr (N == 0)
    return 0;
  else if constexpr (takes_members<T>(std::make_index_sequence<N>{}))
    return takes_members<T>(std::make_index_sequence<9>{}) ? 0 : N;
  else
    return members_of<T, N - 1>();
}

template <class T>
concept Aggregate = std::is_class_v<T> && std::is_aggregate_v<T> && !std::is_empty_v<T> && (members_of<T>() > 0);

/// The members of an aggregate as a tuple of references.
template <class T>
auto members_as_tuple(T& value) {
  constexpr std::size_t n = members_of<std::remove_const_t<T>>();
  if constexpr (n == 1) {
    auto& [a] = value;
    return std::tie(a);
  } else if constexpr (n == 2) {
    auto& [a, b] = value;
    return std::tie(a, b);
  } else if constexpr (n == 3) {
    auto& [a, b, c] = value;
    return std::tie(a, b, c);
  } else if constexpr (n == 4) {
    auto& [a, b, c, d] = value;
    return std::tie(a, b, c, d);
  } else if constexpr (n == 5) {
    auto& [a, b, c, d, e] = value;
    return std::tie(a, b, c, d, e);
  } else if constexpr (n == 6) {
    auto& [a, b, c, d, e, f] = value;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (n == 7) {
    auto& [a, b, c, d, e, f, g] = value;
    return std::tie(a, b, c, d, e, f, g);
  } else {
    auto& [a, b, c, d, e, f, g, h] = value;
    return std::tie(a, b, c, d, e, f, g, h);
  }
}

struct IgnoreTensor {
  void operator()(torch::Tensor&) const {}
};

/// A class whose author wrote `for_each_tensor(value, visit)` beside it.
template <class T>
concept ListsItsTensors = requires(T& value) {
  for_each_tensor(value, IgnoreTensor{});
};

template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};

template <class T>
concept KeyedItem = requires(T& item) {
  item.key();
  item.value();
};  // of torch::OrderedDict

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

consteval TensorsIn together(std::initializer_list<TensorsIn> parts) {
  TensorsIn all = TensorsIn::none;
  for (TensorsIn part : parts) all = part > all ? part : all;
  return all;
}

template <class Const>
consteval TensorsIn tensors_in() {
  using T = std::remove_cv_t<Const>;
  constexpr bool writable = !std::is_const_v<Const>;
  if constexpr (std::is_same_v<T, torch::Tensor>) {
    return writable ? TensorsIn::visible : TensorsIn::hidden;
  } else if constexpr (ListsItsTensors<T>) {
    return TensorsIn::visible;
  } else if constexpr (std::is_void_v<T> || std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_null_pointer_v<T> ||
                       std::is_empty_v<T> || std::is_same_v<T, const char*> || std::is_same_v<T, c10::Scalar> ||
                       std::is_same_v<T, c10::Device> || std::is_same_v<T, c10::TensorOptions>) {
    return TensorsIn::none;
  } else if constexpr (is_optional<T>) {
    return tensors_in<typename T::value_type>();
  } else if constexpr (TupleLike<T>) {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return together({tensors_in<std::tuple_element_t<I, T>>()...});
    }
    (std::make_index_sequence<std::tuple_size_v<T>>{});
  } else if constexpr (std::ranges::range<T&>) {
    using Element = std::remove_reference_t<std::ranges::range_reference_t<T&>>;
    if constexpr (std::is_same_v<std::remove_cv_t<Element>, T>)
      return TensorsIn::hidden;
    else
      return tensors_in<Element>();
  } else if constexpr (KeyedItem<T>) {
    return tensors_in<std::remove_reference_t<decltype(std::declval<T&>().value())>>();
  } else if constexpr (Aggregate<T>) {
    using Members = decltype(members_as_tuple(std::declval<T&>()));
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return together({tensors_in<std::remove_reference_t<std::tuple_element_t<I, Members>>>()...});
    }
    (std::make_index_sequence<std::tuple_size_v<Members>>{});
  } else {
    return TensorsIn::hidden;
  }
}

/// Calls `visit(torch::Tensor&)` for every tensor in the value: a tensor, an optional, a container, a tuple, an
/// aggregate of up to eight members, any nesting of these, or a class with a function `for_each_tensor(value, visit)`
/// beside it.
template <class T, class Visit>
requires(tensors_in<T>() == TensorsIn::visible) void visit_tensors(T& value, Visit&& visit) {
  const auto if_visible = [&visit]<class Part>(Part& part) {
    if constexpr (tensors_in<Part>() == TensorsIn::visible) visit_tensors(part, visit);
  };
  if constexpr (std::is_same_v<T, torch::Tensor>)
    visit(value);
  else if constexpr (ListsItsTensors<T>)
    for_each_tensor(value, visit);
  else if constexpr (is_optional<T>) {
    if (value) visit_tensors(*value, visit);
  } else if constexpr (TupleLike<T>)
    std::apply([&](auto&... parts) { (if_visible(parts), ...); }, value);
  else if constexpr (std::ranges::range<T&>)
    for (auto& element : value) visit_tensors(element, visit);
  else if constexpr (KeyedItem<T>)
    visit_tensors(value.value(), visit);
  else
    std::apply([&](auto&... parts) { (if_visible(parts), ...); }, members_as_tuple(value));
}

}  // namespace dovetail::detail
