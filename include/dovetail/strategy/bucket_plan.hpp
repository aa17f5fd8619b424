// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/strategy/reduce_dtype.hpp>

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

namespace dovetail {

/// Parameters of one dtype whose gradients are reduced together.
struct BucketPlan {
  std::vector<std::size_t> slots;
  torch::ScalarType reduced;  ///< as gradients are sent
  FlatLayout layout;

  int64_t bytes(torch::ScalarType dtype) const { return layout.size() * int64_t(c10::elementSize(dtype)); }
};

/// MiB of gradients.
struct BucketSizes {
  int first, others;
};

/// Which gradients are reduced together by a strategy that cuts buckets over the ranks: those of each dtype apart, in
/// the order in which backward makes them ready. A bucket takes tensors up to its size, or a single larger one; and an
/// eighth more, so that small tensors between large ones need no bucket of their own. Where tensors stay whole, or
/// nothing is sent, there is one for each dtype. Numbers only: nothing is moved.
/// @throws Error(user_code) for a parameter that is not dense, Error(arguments) for a reduce_format that does not fit
inline std::vector<BucketPlan> plan_buckets(const std::vector<Slot>& slots, int ranks, BucketSizes sizes,
                                            std::optional<Format> reduce_format, std::string_view strategy,
                                            Cut cut = Cut::inside_tensors) {
  std::map<torch::ScalarType, std::vector<std::vector<std::size_t>>> buckets;
  std::map<torch::ScalarType, int64_t> filled;  // bytes in the last bucket
  const bool cuts = cut == Cut::inside_tensors && ranks > 1;
  for (std::size_t i = slots.size(); i-- > 0;) {
    require_dense(slots[i]);
    const torch::Tensor& model = slots[i].model;
    const auto dtype = model.scalar_type();
    const int64_t bytes = model.numel() * int64_t(c10::elementSize(main_dtype_of(dtype)));
    const int64_t size = int64_t(buckets[dtype].size() > 1 ? sizes.others : sizes.first) << 20;
    const int64_t more = bytes <= size / 16 ? size / 8 : 0;
    if (buckets[dtype].empty() || (cuts && filled[dtype] + bytes > size + more)) {
      buckets[dtype].emplace_back();
      filled[dtype] = 0;
    }
    buckets[dtype].back().push_back(i);
    filled[dtype] += bytes;
  }
  std::vector<BucketPlan> plan;
  for (auto& [dtype, lists] : buckets)
    for (auto& members : lists) {
      std::vector<int64_t> numels;
      for (const std::size_t i : members) numels.push_back(slots[i].model.numel());
      const auto reduced = reduce_dtype(slots[members.front()], reduce_format, strategy);
      plan.push_back({std::move(members), reduced, FlatLayout(numels, ranks, cut)});
    }
  // Ready is what got its last gradient, that of the first parameter in it.
  std::stable_sort(plan.begin(), plan.end(),
                   [](const BucketPlan& a, const BucketPlan& b) { return a.slots.back() > b.slots.back(); });
  return plan;
}

}  // namespace dovetail
