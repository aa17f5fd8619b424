// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/optim/kernel_formats.hpp>

#include <algorithm>
#include <cstddef>

#if defined(__clang__)
#pragma float_control(push)
#pragma clang fp contract(off)
#else
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#endif

namespace dovetail::detail {

/// How many sums of squares run beside each other: element i is added to sum i modulo this, whatever the width of the
/// registers.
inline constexpr int64_t norm_lanes = 32;

/// Adds the squares of `count` elements, a multiple of norm_lanes, to `sums`, in double.
template <class T>
struct AddSquares {
  const T* data;
  int64_t count;
  double* sums;

  template <int bytes>
  [[gnu::always_inline]] inline void run() const {
    constexpr int lanes = bytes / int(sizeof(double)), parts = int(norm_lanes) / lanes;
    Lanes<double, bytes> sum[parts];
    for (int p = 0; p < parts; ++p) load<bytes>(sum[p], sums + p * lanes);
    for (int64_t i = 0; i < count; i += norm_lanes)
      for (int p = 0; p < parts; ++p) {
        Lanes<T, lanes* int(sizeof(T))> x;
        load<lanes* int(sizeof(T))>(x, data + i + p * lanes);
        const Lanes<double, bytes> wide = __builtin_convertvector(x, std::remove_reference_t<decltype(sum[p])>);
        sum[p] = sum[p] + wide * wide;
      }
    for (int p = 0; p < parts; ++p) store<bytes>(sums + p * lanes, sum[p]);
  }
};

/// Elements whose squares are added up before they are added to those of others: the piece of work of one thread.
inline constexpr int64_t norm_block = 1 << 15;

/// Sum of the squares of up to norm_block elements.
inline double squared_norm_of_block(Cpu cpu, Format format, const std::byte* data, int64_t count) {
  constexpr int64_t room = 1024;
  alignas(64) double sums[norm_lanes] = {};
  const auto add = [&]<class T>(const T* some, int64_t n) {
    const int64_t whole = n / norm_lanes * norm_lanes;
    run_on(cpu, AddSquares<T>{some, whole, sums});
    if (whole == n) return;
    T rest[norm_lanes] = {};
    std::copy(some + whole, some + n, rest);
    run_on(cpu, AddSquares<T>{rest, norm_lanes, sums});
  };
  if (format == Format::fp32) {
    add(reinterpret_cast<const float*>(data), count);
  } else if (format == Format::fp64) {
    add(reinterpret_cast<const double*>(data), count);
  } else {
    alignas(64) float wide[room];
    for (int64_t first = 0; first < count; first += room) {
      const int64_t n = std::min(count - first, room);
      widen(cpu, format, data + first * 2, wide, n);
      add(static_cast<const float*>(wide), n);
    }
  }
  for (int64_t half = norm_lanes / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

}  // namespace dovetail::detail

#if defined(__clang__)
#pragma float_control(pop)
#else
#pragma GCC pop_options
#endif
