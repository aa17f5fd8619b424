// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/gather_text.hpp>

#include <sstream>
#include <string>

namespace dovetail {

/// Compares lines of text over the ranks: all of them throw, or none. What other ranks compare elsewhere in their
/// program differs too, so that a rank which has taken another way is found here instead of waited for. Two
/// collectives.
/// @throws Error(ranks_disagree) with the first line in which a rank differs from rank 0
inline void compare_lines(Communicator& comm, const std::string& mine, const std::string& what,
                          const std::string& cure) {
  if (comm.size() == 1) return;
  const auto all = all_gather_text(comm, mine);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    std::istringstream first(all[0]), other(all[r]);
    std::string ours, theirs;
    do {
      if (!std::getline(first, ours)) ours = "nothing";
      if (!std::getline(other, theirs)) theirs = "nothing";
    } while (ours == theirs);
    throw Error(ExitCode::ranks_disagree, "rank " + std::to_string(r) + " " + what + " rank 0: '" + theirs +
                                              "' where rank 0 has '" + ours + "'. " + cure);
  }
}

}  // namespace dovetail
