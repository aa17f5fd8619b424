// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <optional>
#include <string>

namespace dovetail {

/// What becomes of a unit's whole parameters between its forward and its backward: freed (`true`), left gathered
/// (`false`), or `to_ranks(k)`: one k-th of them stays on each rank, and backward gathers among k neighbouring ranks
/// only.
class ReshardAfterForward {
 public:
  template <std::same_as<bool> Bool>  // a number would be taken for true
  constexpr ReshardAfterForward(Bool frees) : slices_(frees ? std::optional<int>() : 1) {}

  /// Are whole parameters freed after forward?
  [[nodiscard]] constexpr explicit operator bool() const { return slices_ != 1; }

  /// Into how many slices, of which one stays on a rank, they are cut; nothing: no more than a rank's own part stays.
  [[nodiscard]] constexpr std::optional<int> slices() const { return slices_; }

  [[nodiscard]] std::string text() const {
    return !slices_ ? "true" : *slices_ == 1 ? "false" : "to_ranks(" + std::to_string(*slices_) + ")";
  }

 private:
  friend constexpr ReshardAfterForward to_ranks(int k);
  constexpr explicit ReshardAfterForward(std::optional<int> slices) : slices_(slices) {}

  std::optional<int> slices_;
};

/// For FSDP's `.reshard_after_forward`: 1/k stays on each rank. k must divide the shard group; to_ranks(1) is `false`.
constexpr ReshardAfterForward to_ranks(int k) {
  return ReshardAfterForward(std::optional<int>(k));
}

}  // namespace dovetail
