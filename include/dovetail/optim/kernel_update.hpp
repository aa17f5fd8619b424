// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/optim/kernel_formats.hpp>
#include <dovetail/optim/kernel_rules.hpp>

#include <algorithm>
#include <type_traits>

namespace dovetail::detail {

/// The arrays of one update, of equal length. Parameter and state are stored in `format`, the gradient in it or, under
/// an fp32 parameter, in a format of 16 bits; so is `low`, if there: a rounded copy of the new parameter.
struct UpdateArrays {
  Format format = Format::fp32, grad_format = Format::fp32, low_format = Format::bf16;
  std::byte* param = nullptr;
  const std::byte* grad = nullptr;
  std::byte* state[3] = {};
  std::byte* low = nullptr;
  int64_t count = 0;
};

/// A rule over arrays in the format of its arithmetic, `count` elements, a multiple of 16.
template <class Rule>
struct UpdateLoop {
  using T = typename Rule::Real;
  Rule rule;
  T* param;
  const T* grad;
  T* state[3];
  uint16_t* low;
  bool brain;  // low is bf16, else fp16
  int64_t count;

  template <int bytes>
  [[gnu::always_inline]] inline void run() const {
    constexpr int64_t lanes = bytes / int(sizeof(T));
    for (int64_t i = 0; i < count; i += lanes) {
      Registers<T, bytes> r{};
      load<bytes>(r.param, param + i);
      load<bytes>(r.grad, grad + i);
      if (rule.states() > 0) load<bytes>(r.state[0], state[0] + i);
      if (rule.states() > 1) load<bytes>(r.state[1], state[1] + i);
      if (rule.states() > 2) load<bytes>(r.state[2], state[2] + i);
      rule.template apply<bytes>(r);
      store<bytes>(param + i, r.param);
      if (rule.states() > 0) store<bytes>(state[0] + i, r.state[0]);
      if (rule.states() > 1) store<bytes>(state[1] + i, r.state[1]);
      if (rule.states() > 2) store<bytes>(state[2] + i, r.state[2]);
      if constexpr (std::is_same_v<T, float>) {
        if (!low) continue;
        if (brain)
          store_low<Format::bf16, bytes>(low + i, r.param);
        else
          store_low<Format::fp16, bytes>(low + i, r.param);
      }
    }
  }
};

/// Elements in the format of the arithmetic: where they lie if they are stored in it and their number is a multiple of
/// 16, else copied into `room` and padded with zeros.
template <class T>
T* opened(Cpu cpu, Format format, const std::byte* array, int64_t count, T* room) {
  const int64_t padded = (count + 15) / 16 * 16;
  if (size_of(format) != sizeof(T)) {
    if constexpr (std::is_same_v<T, float>) widen(cpu, format, array, room, count);
    return room;
  }
  if (count == padded) return reinterpret_cast<T*>(const_cast<std::byte*>(array));
  std::memcpy(room, array, std::size_t(count) * sizeof(T));
  std::fill(room + count, room + padded, T(0));
  return room;
}

/// Puts elements that were copied back where they are stored.
template <class T>
void close(Cpu cpu, Format format, const T* data, std::byte* array, int64_t count) {
  if (static_cast<const void*>(data) == array) return;
  if (size_of(format) == sizeof(T))
    std::memcpy(array, data, std::size_t(count) * sizeof(T));
  else if constexpr (std::is_same_v<T, float>)
    narrow(cpu, format, data, array, count);
}

/// Updates elements [first, last). Every array is read and written once: what is converted stays in the first cache.
template <class Rule>
void update_range(Cpu cpu, const Rule& rule, const UpdateArrays& arrays, int64_t first, int64_t last) {
  using T = typename Rule::Real;
  constexpr int64_t room = 1024;
  const bool converts = size_of(arrays.format) != sizeof(T) || arrays.grad_format != arrays.format;
  alignas(64) T rooms[5][room];
  const int64_t width = size_of(arrays.format), grad_width = size_of(arrays.grad_format);
  while (first < last) {
    int64_t count = converts ? std::min(last - first, room) : last - first;
    if (count > 16) count -= count % 16;
    UpdateLoop<Rule> loop{rule, {}, {}, {}, {}, arrays.low_format == Format::bf16, (count + 15) / 16 * 16};
    const bool whole = count == loop.count;
    uint16_t rest[16];
    loop.param = opened(cpu, arrays.format, arrays.param + first * width, count, rooms[0]);
    loop.grad = opened(cpu, arrays.grad_format, arrays.grad + first * grad_width, count, rooms[1]);
    for (int k = 0; k < rule.states(); ++k)
      loop.state[k] = opened(cpu, arrays.format, arrays.state[k] + first * width, count, rooms[2 + k]);
    std::byte* const low = arrays.low ? arrays.low + first * 2 : nullptr;
    if (low) loop.low = whole ? reinterpret_cast<uint16_t*>(low) : rest;
    run_on(cpu, loop);
    close(cpu, arrays.format, loop.param, arrays.param + first * width, count);
    for (int k = 0; k < rule.states(); ++k)
      close(cpu, arrays.format, loop.state[k], arrays.state[k] + first * width, count);
    if (low && !whole) std::memcpy(low, rest, std::size_t(count) * 2);
    first += count;
  }
}

}  // namespace dovetail::detail
