// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/strategy/reduce_dtype.hpp>

#include <map>
#include <vector>

namespace dovetail {

/// Parameters of one dtype whose gradients are reduced together.
struct ShardedBucket {
  std::vector<std::size_t> slots;
  torch::ScalarType reduced;  ///< as gradients are sent
  FlatLayout layout;
};

/// How Sharded cuts a model: buckets of about `bucket_mb` of gradients, in backward order. Where tensors stay whole, or
/// nothing is sent, there is one for each dtype. Numbers only: nothing is moved.
/// @throws Error(user_code) for a parameter that is not dense, Error(arguments) for a reduce_format that does not fit
inline std::vector<ShardedBucket> plan_sharded(const std::vector<Slot>& slots, Cut cut, int bucket_mb,
                                               std::optional<Format> reduce_format, int ranks) {
  std::map<torch::ScalarType, std::vector<std::vector<std::size_t>>> buckets;
  std::map<torch::ScalarType, int64_t> filled;  // bytes in the last bucket
  const bool cuts = cut == Cut::inside_tensors && ranks > 1;
  for (std::size_t i = slots.size(); i-- > 0;) {
    require_dense(slots[i]);
    const torch::Tensor& model = slots[i].model;
    const auto dtype = model.scalar_type();
    const int64_t bytes = model.numel() * int64_t(c10::elementSize(main_dtype_of(dtype)));
    if (buckets[dtype].empty() || (cuts && filled[dtype] + bytes > int64_t(bucket_mb) << 20)) {
      buckets[dtype].emplace_back();
      filled[dtype] = 0;
    }
    buckets[dtype].back().push_back(i);
    filled[dtype] += bytes;
  }
  std::vector<ShardedBucket> plan;
  for (auto& [dtype, lists] : buckets)
    for (auto& members : lists) {
      std::vector<int64_t> numels;
      for (const std::size_t i : members) numels.push_back(slots[i].model.numel());
      const auto reduced = reduce_dtype(slots[members.front()], reduce_format, "Sharded");
      plan.push_back({std::move(members), reduced, FlatLayout(numels, ranks, cut)});
    }
  return plan;
}

}  // namespace dovetail
