// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

/// Loops over raw memory that are compiled for several sets of vector instructions, whatever the compiler was told to
/// compile for, and choose among them at run time. Each is written once, over vectors whose width is a template
/// argument.
///
/// A multiplication and an addition are never contracted into one rounding (each header with arithmetic says so at its
/// head), so the result for an element has the same bits on every machine, wherever the element lies.

namespace dovetail::detail {

/// The sets of instructions.
enum class Cpu { portable, avx2, avx512 };

/// The best that this machine has.
inline Cpu this_cpu() {
#if defined(__x86_64__)
  static const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  static const Cpu best = avx512 ? Cpu::avx512 : __builtin_cpu_supports("avx2") ? Cpu::avx2 : Cpu::portable;
  return best;
#else
  return Cpu::portable;
#endif
}

/// A register of so many bytes, and the same as it lies in memory, at any address. Lanes are passed by reference: by
/// value the calling convention would depend on the instructions compiled for.
template <class T, int bytes>
struct LanesOf {
  typedef T type __attribute__((vector_size(bytes)));
  typedef T Loose __attribute__((vector_size(bytes), aligned(alignof(T)), may_alias));
};
template <class T, int bytes>
using Lanes = typename LanesOf<T, bytes>::type;

template <int bytes, class T>
[[gnu::always_inline]] inline void load(Lanes<T, bytes>& lanes, const T* from) {
  lanes = *reinterpret_cast<const typename LanesOf<T, bytes>::Loose*>(from);
}
template <int bytes, class T>
[[gnu::always_inline]] inline void store(T* to, const Lanes<T, bytes>& lanes) {
  *reinterpret_cast<typename LanesOf<T, bytes>::Loose*>(to) = lanes;
}

template <class T, int bytes, int... lane>
[[gnu::always_inline]] inline void root_halves(Lanes<T, bytes>& x, std::integer_sequence<int, lane...>);

/// Square roots in place. No operator on vectors stands for them; they are taken in pieces of 16 bytes, which every
/// x86-64 can do, and which are no slower per element than wider ones.
template <class T, int bytes>
[[gnu::always_inline]] inline void root(Lanes<T, bytes>& x) {
  constexpr int lanes = bytes / int(sizeof(T));
  if constexpr (bytes > 16) {
    root_halves<T, bytes>(x, std::make_integer_sequence<int, lanes / 2>());
  } else {
#if defined(__x86_64__)
    if constexpr (std::is_same_v<T, float>)
      x = Lanes<T, bytes>(_mm_sqrt_ps(__m128(x)));
    else
      x = Lanes<T, bytes>(_mm_sqrt_pd(__m128d(x)));
#else
    for (int i = 0; i < lanes; ++i) x[i] = sizeof(T) == 4 ? T(__builtin_sqrtf(float(x[i]))) : T(__builtin_sqrt(x[i]));
#endif
  }
}

template <class T, int bytes, int... lane>
[[gnu::always_inline]] inline void root_halves(Lanes<T, bytes>& x, std::integer_sequence<int, lane...>) {
  constexpr int half = sizeof...(lane);
  Lanes<T, bytes / 2> low = __builtin_shufflevector(x, x, lane...),
                      high = __builtin_shufflevector(x, x, (half + lane)...);
  root<T, bytes / 2>(low);
  root<T, bytes / 2>(high);
  x = __builtin_shufflevector(low, high, lane..., (half + lane)...);
}

/// What is left of a kernel's arguments where it is compiled: a copy, which nothing that it writes can change.
template <class Kernel>
inline void run_portable(Kernel kernel) {
  kernel.template run<16>();
}
#if defined(__x86_64__)
template <class Kernel>
[[gnu::target("avx2")]] inline void run_avx2(Kernel kernel) {
  kernel.template run<32>();
  __builtin_ia32_vzeroupper();  // compilers that optimize little leave it out, and all that follows is slow
}
template <class Kernel>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] inline void run_avx512(Kernel kernel) {
  kernel.template run<64>();
  __builtin_ia32_vzeroupper();
}
#endif

/// Runs a kernel: an object with a member template `run<bytes>()`, always inlined, that does the whole loop in
/// registers of so many bytes.
template <class Kernel>
inline void run_on(Cpu cpu, const Kernel& kernel) {
#if defined(__x86_64__)
  if (cpu == Cpu::avx512) return run_avx512(kernel);
  if (cpu == Cpu::avx2) return run_avx2(kernel);
#endif
  (void)cpu;
  run_portable(kernel);
}

}  // namespace dovetail::detail
