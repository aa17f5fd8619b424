// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/loop/compare_ranks.hpp>
#include <dovetail/shard/position_sum.hpp>

#include <array>
#include <cmath>
#include <span>
#include <sstream>

namespace dovetail {

/// Ranks must have built the same model: names, shapes, dtypes and what is trainable are compared before anything else
/// is sent, and rank 0's weights and buffers go to all where they differ, as DistributedDataParallel does it. Of what
/// was cut already nobody has whole ones to send: it must not differ.
/// @throws Error(ranks_disagree)
inline void compare_models(RunContext& run) {
  if (run.world_size() == 1) return;
  torch::NoGradGuard no_grad;
  std::ostringstream structure;
  std::array<double, 2> sums{};  // of what is whole, of what was cut
  int64_t count = 0;
  std::vector<torch::Tensor> tensors;
  const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
    structure << name << ' ' << tensor.sizes() << ' ' << tensor.scalar_type() << ' ' << tensor.requires_grad();
    const auto cut = run.cut.find(tensor);
    structure << (cut ? " cut\n" : "\n");
    sums[cut ? 1 : 0] += double(++count) * (cut ? cut->sum() : detail::position_sum(tensor));
    if (!cut) tensors.push_back(tensor.detach());
  };
  for (const auto& item : run.module->named_parameters()) add(item.key(), item.value());
  for (const auto& item : run.module->named_buffers()) add(item.key(), item.value());
  // Those too that are no part of the model: what is done with the others next is done by all ranks.
  for (const auto& group : run.cut.groups()) structure << group->text() << '\n';

  compare_lines(run.comm, structure.str(), "built another model than", "configure_model must not depend on the rank.");
  const std::size_t kinds = run.cut.empty() ? 1 : 2;
  std::array<double, 2> same{1, 1};
  const auto compare = [&](const std::array<double, 2>& mine, auto&& equal) {
    const auto all = run.comm.all_gather(std::span<const double>(mine.data(), kinds));
    for (std::size_t i = 0; i < all.size(); ++i)
      if (!equal(mine[i % kinds], all[i])) same[i % kinds] = 0;
  };
  compare(sums, [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); });
  compare(std::array(same), [](double, double flag) { return flag != 0; });
  if (same[1] == 0)
    throw Error(ExitCode::ranks_disagree,
                "rank " + std::to_string(run.rank()) +
                    " built other weights than some other rank: with FSDP's deferred_building all must draw the same, "
                    "as each keeps its part only. Leave torch's generator as the run has seeded it.");
  if (same[0] != 0) return;
  for (torch::Tensor& tensor : tensors)
    if (tensor.numel() > 0) run.comm.broadcast(tensor, 0);
}

}  // namespace dovetail
