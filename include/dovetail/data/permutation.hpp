// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace dovetail {

/// A random order of 0..n-1 that is computed, not stored: element i costs O(1) time and nothing has to be kept to
/// resume. The order is a function of (n, seed, epoch) alone, the same on every rank, machine and version of the
/// library.
///
/// A balanced Feistel network of 8 rounds permutes the numbers below the smallest 4^k >= n; a value that is not below n
/// is sent through again until it is (cycle walking), which takes under four passes on average. Both are standard (Luby
/// and Rackoff 1988; Black and Rogaway 2002); round keys and round function are the finalizer of SplitMix64 (Steele,
/// Lea and Flood 2014).
class Permutation {
 public:
  constexpr Permutation(std::int64_t n, std::uint64_t seed, std::uint64_t epoch) : n_(n) {
    const unsigned bits = n > 1 ? static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(n - 1))) : 0;
    half_ = (bits + 1) / 2;
    mask_ = (std::uint64_t{1} << half_) - 1;
    std::uint64_t state = mix(seed + increment) ^ mix(epoch * 2 + 1 + increment * 3);
    for (auto& key : keys_) key = mix(state += increment);
  }

  [[nodiscard]] constexpr std::int64_t size() const { return n_; }

  /// The element at position i of the order, 0 <= i < size().
  [[nodiscard]] constexpr std::int64_t operator()(std::int64_t i) const {
    auto value = static_cast<std::uint64_t>(i);
    do {
      value = pass(value);
    } while (value >= static_cast<std::uint64_t>(n_));
    return static_cast<std::int64_t>(value);
  }

 private:
  static constexpr std::uint64_t increment = 0x9e3779b97f4a7c15;

  static constexpr std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

  [[nodiscard]] constexpr std::uint64_t pass(std::uint64_t value) const {
    std::uint64_t left = value >> half_, right = value & mask_;
    for (const std::uint64_t key : keys_) {
      const std::uint64_t next = left ^ (mix(right ^ key) & mask_);
      left = right;
      right = next;
    }
    return (left << half_) | right;
  }

  std::int64_t n_;
  unsigned half_ = 0;
  std::uint64_t mask_ = 0;
  std::array<std::uint64_t, 8> keys_{};
};

}  // namespace dovetail
