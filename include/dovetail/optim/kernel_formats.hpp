// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/traits.hpp>
#include <dovetail/optim/kernel_lanes.hpp>

#include <cstring>

namespace dovetail::detail {

/// Bytes of one element.
constexpr int64_t size_of(Format format) {
  return format == Format::fp64 ? 8 : format == Format::fp32 ? 4 : 2;
}

/// Bits of fp32 numbers, in place, to those of a format of 16 bits, in the lower half of each lane: rounded to nearest,
/// ties to even; NaN stays NaN, infinities and subnormal numbers are kept.
template <Format format, int bytes>
[[gnu::always_inline]] inline void narrow_bits(Lanes<int32_t, bytes>& x) {
  static_assert(format == Format::bf16 || format == Format::fp16);
  using Ints = Lanes<int32_t, bytes>;
  using Floats = Lanes<float, bytes>;
  constexpr int32_t infinity = 0x7f800000;
  const Ints size = x & 0x7fffffff;
  if constexpr (format == Format::bf16) {
    const Ints rounded = size + 0x7fff + ((x >> 16) & 1), sign = (x >> 16) & 0x8000;
    x = ((size > infinity ? size | 0x400000 : rounded) >> 16) | sign;
  } else {
    // Numbers below 2^-14 are rounded by an addition: just above 1/2 floats are 2^-24 apart, as fp16's subnormals are.
    constexpr int32_t half = 0x3f000000, smallest_normal = 0x38800000, above = 0x47800000;
    const Ints subnormal = Ints(Floats(size) + 0.5f) - half;
    const Ints normal = (size - ((127 - 15) << 23) + 0xfff + ((size >> 13) & 1)) >> 13;
    const Ints large = size > infinity ? Ints{} + 0x7e00 : Ints{} + 0x7c00;
    x = (size < smallest_normal ? subnormal : size < above ? normal : large) | ((x >> 16) & 0x8000);
  }
}

/// The other way, exactly: bits of numbers of a format of 16 bits, one in each lane, to those of fp32.
template <Format format, int bytes>
[[gnu::always_inline]] inline void widen_bits(Lanes<int32_t, bytes>& x) {
  using Ints = Lanes<int32_t, bytes>;
  using Floats = Lanes<float, bytes>;
  if constexpr (format == Format::bf16) {
    x = x << 16;
  } else {
    const Ints size = (x & 0x7fff) << 13, exponent = size & (0x7c00 << 13), normal = size + ((127 - 15) << 23);
    const Ints subnormal = Ints(Floats(normal + (1 << 23)) - 0x1p-14f);
    x = (exponent == 0                ? subnormal
         : exponent == (0x7c00 << 13) ? normal + ((255 - 31 - 112) << 23)
                                      : normal) |
        ((x & 0x8000) << 16);
  }
}

/// Rounds a register of fp32 numbers and stores them.
template <Format format, int bytes>
[[gnu::always_inline]] inline void store_low(uint16_t* to, const Lanes<float, bytes>& from) {
  auto bits = Lanes<int32_t, bytes>(from);
  narrow_bits<format, bytes>(bits);
  store<bytes / 2>(to, __builtin_convertvector(bits, Lanes<uint16_t, bytes / 2>));
}

/// Converts `count` elements, a multiple of 16, between fp32 and a format of 16 bits.
template <Format format>
struct Convert {
  float* wide;
  uint16_t* low;
  int64_t count;
  bool narrows;

  template <int bytes>
  [[gnu::always_inline]] inline void run() const {
    constexpr int64_t lanes = bytes / 4;
    for (int64_t i = 0; i < count; i += lanes) {
      if (narrows) {
        Lanes<float, bytes> x;
        load<bytes>(x, wide + i);
        store_low<format, bytes>(low + i, x);
      } else {
        Lanes<uint16_t, bytes / 2> x;
        load<bytes / 2>(x, low + i);
        auto bits = __builtin_convertvector(x, Lanes<int32_t, bytes>);
        widen_bits<format, bytes>(bits);
        store<bytes>(wide + i, Lanes<float, bytes>(bits));
      }
    }
  }
};

/// Reads `count` elements into fp32 and pads up to a multiple of 16 with zeros; `wide` has room for them.
inline void widen(Cpu cpu, Format from, const void* low, float* wide, int64_t count) {
  const int64_t whole = count / 16 * 16;
  const auto convert = [&](const uint16_t* some, float* to, int64_t n) {
    auto* in = const_cast<uint16_t*>(some);
    from == Format::bf16 ? run_on(cpu, Convert<Format::bf16>{to, in, n, false})
                         : run_on(cpu, Convert<Format::fp16>{to, in, n, false});
  };
  const auto* in = static_cast<const uint16_t*>(low);
  if (whole > 0) convert(in, wide, whole);
  if (whole == count) return;
  uint16_t rest[16] = {};
  std::memcpy(rest, in + whole, std::size_t(count - whole) * 2);
  convert(rest, wide + whole, 16);
}

/// Rounds `count` elements; up to a multiple of 16 are read.
inline void narrow(Cpu cpu, Format to, const float* wide, void* low, int64_t count) {
  const int64_t whole = count / 16 * 16;
  const auto convert = [&](const float* from, uint16_t* out, int64_t n) {
    auto* some = const_cast<float*>(from);
    to == Format::bf16 ? run_on(cpu, Convert<Format::bf16>{some, out, n, true})
                       : run_on(cpu, Convert<Format::fp16>{some, out, n, true});
  };
  auto* out = static_cast<uint16_t*>(low);
  if (whole > 0) convert(wide, out, whole);
  if (whole == count) return;
  uint16_t rest[16];
  convert(wide + whole, rest, 16);
  std::memcpy(out + whole, rest, std::size_t(count - whole) * 2);
}

}  // namespace dovetail::detail
