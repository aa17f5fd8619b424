// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dovetail {

enum class Collective { all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, barrier, gather };

[[nodiscard]] constexpr std::string_view name_of(Collective collective) {
  constexpr std::array<std::string_view, 7> names{"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                                  "all_to_all", "barrier",    "gather"};
  return names[static_cast<std::size_t>(collective)];
}

/// Bytes that one rank sends in a collective over `ranks` ranks, by the formula of a bandwidth-optimal algorithm; for a
/// broadcast and a gather the mean over the ranks. `bytes` is the size of the whole tensor: what is reduced or
/// broadcast, the gathered output, the input that is scattered or exchanged. Rounded down.
[[nodiscard]] constexpr std::int64_t bytes_sent(Collective collective, std::int64_t bytes, int ranks) {
  switch (collective) {
    case Collective::all_reduce:
      return 2 * (ranks - 1) * bytes / ranks;
    case Collective::barrier:
      return 0;
    case Collective::gather:
      return (ranks - 1) * bytes / ranks / ranks;
    default:
      return (ranks - 1) * bytes / ranks;
  }
}

/// Number of collectives and the bytes this rank sent in them.
struct Count {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;

  friend constexpr bool operator==(const Count&, const Count&) = default;
  friend constexpr Count operator-(const Count& a, const Count& b) { return {a.calls - b.calls, a.bytes - b.bytes}; }
};

/// What a Communicator did since it was made: in all, and per collective. A copy is a snapshot; the difference of two
/// snapshots is what happened between them.
struct CommunicationCounts : Count {
  std::array<Count, 7> each{};

  [[nodiscard]] constexpr const Count& of(Collective collective) const {
    return each[static_cast<std::size_t>(collective)];
  }

  constexpr void add(Collective collective, std::int64_t sent) {
    Count& one = each[static_cast<std::size_t>(collective)];
    ++one.calls;
    one.bytes += sent;
    ++calls;
    bytes += sent;
  }

  /// What add would be told of a collective of so many bytes in whole over so many ranks. One rank sends nothing, and
  /// nobody sends what is empty.
  constexpr void plan(Collective collective, std::int64_t whole, int ranks) {
    if (ranks > 1 && whole > 0) add(collective, bytes_sent(collective, whole, ranks));
  }
};

}  // namespace dovetail
