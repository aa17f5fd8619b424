// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dovetail {

/// A number by which ranks see whether they have the same, in the same order: 0 where nothing was added. Exact in a
/// double, so that it travels with other numbers.
class Fingerprint {
 public:
  static constexpr int bits = 52;

  void add(std::uint64_t value) {
    hash_ += value + 0x9E3779B97F4A7C15;  // the finish of splitmix64, so that every bit of a value changes all
    hash_ = (hash_ ^ (hash_ >> 30)) * 0xBF58476D1CE4E5B9;
    hash_ = (hash_ ^ (hash_ >> 27)) * 0x94D049BB133111EB;
    hash_ ^= hash_ >> 31;
  }

  std::uint64_t value() const { return hash_ >> (64 - bits); }

 private:
  std::uint64_t hash_ = 0;
};

}  // namespace dovetail
