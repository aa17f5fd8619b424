// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/gathers_low.hpp>
#include <dovetail/shard/recompute.hpp>
#include <dovetail/shard/unit_base.hpp>
#include <dovetail/shard/unit_builder.hpp>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

namespace dovetail {

namespace detail {

template <class M>
struct ImplOf {
  using type = M;
};
template <class M>
requires requires {
  typename M::ContainedType;
}  // a holder, as TORCH_MODULE makes them
struct ImplOf<M> {
  using type = typename M::ContainedType;
};

/// An argument on its way into a unit: a copy where its tensors can be replaced, else a reference to what the caller
/// has.
template <class Arg>
using Carried =
    std::conditional_t<tensors_in<std::remove_cvref_t<Arg>>() == TensorsIn::visible, std::remove_cvref_t<Arg>, Arg&&>;

template <class Impl>
class UnitCalls : public Impl, public UnitBase {
 public:
  using Impl::Impl;

  bool gathers_low_itself() const final { return gathers_low<Impl>; }

  /// Any entry point other than forward: `unit->call(&BlockImpl::encode, x)`.
  template <class Member, class... Args>
  decltype(auto) call(Member member, Args&&... args) {
    const auto compute =
        [this, member]<class... A>(A&&... a) -> decltype((std::declval<Impl&>().*member)(std::forward<A>(a)...)) {
      return (static_cast<Impl&>(*this).*member)(std::forward<A>(a)...);
    };
    if (!runtime_) return run(compute, std::forward<Args>(args)...);
    return pass(compute, std::forward<Args>(args)...);
  }

  /// forward, with M's overloads and default arguments.
  template <class... Args>
  decltype(auto) enter(Args&&... args) {
    const auto compute =
        [this]<class... A>(A&&... a) -> decltype(std::declval<Impl&>().forward(std::forward<A>(a)...)) {
      return static_cast<Impl&>(*this).forward(std::forward<A>(a)...);
    };
    if (!runtime_) return run(compute, std::forward<Args>(args)...);
    return pass(compute, std::forward<Args>(args)...);
  }

 private:
  template <class Compute, class... Args>
  decltype(auto) pass(const Compute& compute, Args&&... args) {
    // A function that takes a tensor by non-const reference changes the caller's: it must not get a copy.
    if constexpr (std::is_invocable_v<const Compute&, Carried<Args>...>) {
      check_result<std::invoke_result_t<const Compute&, Carried<Args>...>>();
      UnitPass pass(runtime_);
      std::tuple<Carried<Args>...> carried(std::forward<Args>(args)...);
      std::apply([&](auto&... values) { (pass.add_input(values), ...); }, carried);
      pass.route_inputs();
      return std::apply(
          [&](auto&... values) -> decltype(auto) {
            return leave(pass, compute, std::forward<Carried<Args>>(values)...);
          },
          carried);
    } else {
      check_result<std::invoke_result_t<const Compute&, Args...>>();
      UnitPass pass(runtime_);
      return leave(pass, compute, std::forward<Args>(args)...);
    }
  }

  template <class Result>
  static constexpr bool returns_tensors = tensors_in<std::remove_cvref_t<Result>>() == TensorsIn::visible &&
                                          !std::is_reference_v<Result>;

  template <class Result>
  static void check_result() {
    constexpr TensorsIn tensors = tensors_in<std::remove_cvref_t<Result>>();
    static_assert(
        tensors != TensorsIn::hidden,
        "dovetail: a Unit cannot see the tensors in what this function returns. Return tensors, containers, tuples or "
        "plain structs of them, or write for_each_tensor(result, visit) beside the result's type.");
    static_assert(tensors != TensorsIn::visible || !std::is_reference_v<Result>,
                  "dovetail: a function that a Unit calls must return tensors by value, not by reference.");
  }

  template <class Compute, class... Args>
  decltype(auto) run(const Compute& compute, Args&&... args) {
    using Result = std::remove_cv_t<std::invoke_result_t<const Compute&, Args...>>;
    if constexpr (can_recompute<Result, std::remove_cvref_t<Args>...> &&
                  std::is_invocable_v<const Compute&, std::remove_cvref_t<Args>...>) {
      if (recomputes_ && torch::GradMode::is_enabled()) {
        check_recomputes();
        return recompute<Result>(compute, static_cast<Impl&>(*this), std::forward<Args>(args)...);
      }
    } else if (recomputes_ && torch::GradMode::is_enabled()) {
      throw Error(ExitCode::user_code, "the unit '" + this->name() +
                                           "' cannot recompute its activations: its arguments cannot be kept, or what "
                                           "it returns hides its tensors.");
    }
    return compute(std::forward<Args>(args)...);
  }

  // Gathering goes by the passes of the forward; a second one of units further in is not among them.
  void check_recomputes() {
    if (!runtime_) return;
    for (const auto& child : this->modules(/*include_self=*/false))
      if (const auto* inner = dynamic_cast<const UnitBase*>(child.get()); inner && inner->is_attached())
        throw Error(ExitCode::user_code, "the unit '" + this->name() +
                                             "' recomputes its activations and has units inside: let those recompute "
                                             "instead.");
  }

  template <class Compute, class... Args>
  decltype(auto) leave(UnitPass& pass, const Compute& compute, Args&&... args) {
    using Result = std::invoke_result_t<const Compute&, Args...>;
    if constexpr (returns_tensors<Result>) {
      std::remove_cv_t<Result> result = run(compute, std::forward<Args>(args)...);
      pass.route_outputs(result);
      return result;
    } else {
      return compute(std::forward<Args>(args)...);
    }
  }

  [[no_unique_address]] TellsBuilder tells_builder_{*this};
};

/// What `unit->` shows: forward as M has it, with default arguments.
template <class Impl, class Signature>
struct UnitView : UnitCalls<Impl> {
  using UnitCalls<Impl>::UnitCalls;
  template <class... Args>
  decltype(auto) forward(Args&&... args) {
    return this->enter(std::forward<Args>(args)...);
  }
};
template <class Impl, class Result, class... Args>
struct UnitView<Impl, Result(Args...)> : UnitCalls<Impl> {
  using UnitCalls<Impl>::UnitCalls;
  Result forward(Args... args) { return this->enter(std::forward<Args>(args)...); }
  template <class... Fewer>
  requires(sizeof...(Fewer) < sizeof...(Args)) Result forward(Fewer&&... args) {
    return this->enter(std::forward<Fewer>(args)...);
  }
};

/// The module itself: one forward with M's exact signature, for which nn::Sequential asks; variadic where M's is
/// overloaded.
template <class Impl, class Signature>
struct UnitImplFor : UnitView<Impl, Signature> {
  using UnitView<Impl, Signature>::UnitView;
};
template <class Impl, class Result, class... Args>
struct UnitImplFor<Impl, Result(Args...)> : UnitView<Impl, Result(Args...)> {
  using UnitView<Impl, Result(Args...)>::UnitView;
  Result forward(Args... args) { return this->enter(std::forward<Args>(args)...); }
};

template <class Member>
struct PlainSignature;
template <class R, class C, class... A>
struct PlainSignature<R (C::*)(A...)> : std::type_identity<R(A...)> {};
template <class R, class C, class... A>
struct PlainSignature<R (C::*)(A...) const> : std::type_identity<R(A...)> {};
template <class R, class C, class... A>
struct PlainSignature<R (C::*)(A...) noexcept> : std::type_identity<R(A...)> {};
template <class R, class C, class... A>
struct PlainSignature<R (C::*)(A...) const noexcept> : std::type_identity<R(A...)> {};

template <class Impl>
consteval auto forward_signature() {
  if constexpr (requires { typename PlainSignature<decltype(&Impl::forward)>::type; })
    return PlainSignature<decltype(&Impl::forward)>{};
  else
    return std::type_identity<void>{};
}

template <class Impl>
using SignatureOf = typename decltype(forward_signature<Impl>())::type;

}  // namespace detail

/// A module as a unit of sharding: FSDP gathers its parameters before it computes and frees them afterwards; under
/// every other strategy it is the module, at the cost of one pointer test a call.
///
/// M is a holder made by TORCH_MODULE or a class that derives from torch::nn::Module. Names of parameters,
/// constructors, overloads and default arguments of forward stay; it goes into nn::Sequential; the Impl's own members
/// are reached with `->`.
///
///     Unit<Block> first{nullptr};
///     first = register_module("first", Unit<Block>(64));
///     x = first(x);                               // forward
///     y = first->call(&BlockImpl::encode, x);     // another entry point
///
/// Only calls through the unit gather. Tensors in arguments and results are found in containers, optionals, tuples and
/// plain structs; a class of your own lists them in a function `for_each_tensor(value, visit)` beside it. A result that
/// hides its tensors does not compile.
template <class M>
class Unit
    : public torch::nn::ModuleHolder<detail::UnitImplFor<typename detail::ImplOf<M>::type,
                                                         detail::SignatureOf<typename detail::ImplOf<M>::type>>> {
  using Wrapped = typename detail::ImplOf<M>::type;
  using View = detail::UnitView<Wrapped, detail::SignatureOf<Wrapped>>;
  static_assert(std::is_base_of_v<torch::nn::Module, Wrapped>,
                "dovetail: Unit<M> takes a module, as a holder or as its Impl class.");

 public:
  using Impl = detail::UnitImplFor<Wrapped, detail::SignatureOf<Wrapped>>;
  using torch::nn::ModuleHolder<Impl>::ModuleHolder;

  View* operator->() { return this->get(); }
  const View* operator->() const { return this->get(); }

  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    return this->get()->enter(std::forward<Args>(args)...);
  }
};

}  // namespace dovetail
