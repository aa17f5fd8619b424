// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace dovetail {

/// The part of one tensor that one rank owns, in elements.
struct Piece {
  int64_t begin = 0;   ///< first element within the tensor, in storage order
  int64_t numel = 0;   ///< 0: the rank owns nothing of it
  int64_t offset = 0;  ///< where the piece starts within the rank's part
};

/// May a tensor be cut between two ranks? An element-wise optimizer does not mind; others want whole tensors.
enum class Cut { inside_tensors, at_borders };

/// Where tensors lie in one flat buffer that is cut into equal parts, one for each rank. Numbers only.
///
/// Tensors follow each other without gaps, so that a pass over the buffer touches parameters only. The buffer is padded
/// at its end to a multiple of the number of parts. With Cut::at_borders a tensor that would cross the end of a part
/// starts the next part instead, and parts are as small as that allows.
class FlatLayout {
 public:
  FlatLayout() = default;

  /// @param numels elements of each tensor, in the order in which they are to lie
  FlatLayout(std::span<const int64_t> numels, int parts, Cut cut = Cut::inside_tensors)
      : numels_(numels.begin(), numels.end()), parts_(parts) {
    const int64_t total = std::accumulate(numels_.begin(), numels_.end(), int64_t{0});
    part_size_ = (total + parts - 1) / parts;
    if (cut == Cut::inside_tensors) {
      place_densely();
    } else {
      // The smallest part size at which a greedy fill needs no more than `parts` parts. It grows with the size tried.
      int64_t low = part_size_, high = total;
      while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        (fits(middle) ? high : low) = fits(middle) ? middle : middle + 1;
      }
      part_size_ = low;
      place_whole();
    }
  }

  int64_t size() const { return part_size_ * parts_; }  ///< elements of the whole buffer, padding included
  int64_t part_size() const { return part_size_; }      ///< elements of one rank's part, padding included
  int parts() const { return parts_; }
  int64_t offset(std::size_t tensor) const { return offsets_[tensor]; }
  int64_t numel(std::size_t tensor) const { return numels_[tensor]; }

  /// What `part` owns of `tensor`.
  Piece piece(std::size_t tensor, int part) const {
    const int64_t begin = offsets_[tensor], end = begin + numels_[tensor];
    const int64_t part_begin = part * part_size_, part_end = part_begin + part_size_;
    const int64_t from = std::max(begin, part_begin), to = std::min(end, part_end);
    if (from >= to) return {};
    return {from - begin, to - from, from - part_begin};
  }

 private:
  void place_densely() {
    int64_t next = 0;
    for (int64_t numel : numels_) {
      offsets_.push_back(next);
      next += numel;
    }
  }

  bool fits(int64_t part_size) const {
    int used = 1;
    int64_t filled = 0;
    for (int64_t numel : numels_) {
      if (numel > part_size) return false;
      if (filled + numel > part_size) {
        ++used;
        filled = 0;
      }
      filled += numel;
    }
    return used <= parts_;
  }

  void place_whole() {
    int64_t next = 0;
    for (int64_t numel : numels_) {
      const int64_t part_end = (next / std::max<int64_t>(part_size_, 1) + 1) * part_size_;
      if (next + numel > part_end) next = part_end;
      offsets_.push_back(next);
      next += numel;
    }
  }

  std::vector<int64_t> numels_, offsets_;
  int64_t part_size_ = 0;
  int parts_ = 1;
};

}  // namespace dovetail
