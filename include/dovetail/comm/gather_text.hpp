// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <dovetail/comm/communicator.hpp>

namespace dovetail {

/// A text of every rank, in rank order: names, fingerprints, messages. The lengths may differ. Two collectives.
[[nodiscard]] inline std::vector<std::string> all_gather_text(Communicator& communicator, const std::string& mine) {
  const auto length = static_cast<double>(mine.size());
  const auto gathered = communicator.all_gather(std::span(&length, 1));
  const std::vector<double> lengths(gathered.begin(), gathered.end());
  const auto longest = static_cast<int64_t>(*std::max_element(lengths.begin(), lengths.end()));
  const torch::Tensor from = torch::zeros({longest}, torch::kByte);
  const torch::Tensor to = torch::empty({longest * communicator.size()}, torch::kByte);
  if (!mine.empty()) std::memcpy(from.data_ptr(), mine.data(), mine.size());
  communicator.all_gather_into(to, from);
  std::vector<std::string> texts;
  for (size_t r = 0; r < lengths.size(); ++r) {
    const char* begin = static_cast<const char*>(to.data_ptr()) + static_cast<int64_t>(r) * longest;
    texts.emplace_back(begin, static_cast<size_t>(lengths[r]));
  }
  return texts;
}

}  // namespace dovetail
