// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/run/context.hpp>

#include <algorithm>
#include <string>
#include <tuple>
#include <unordered_set>
#include <vector>

namespace dovetail {

/// Refuses a model of which nothing could be trained.
/// @throws Error(user_code)
inline void check_trainable(const RunContext& run) {
  if (!run.gradients.slots.empty()) return;
  const std::size_t count = run.module->parameters().size();
  throw Error(ExitCode::user_code,
              count == 0 ? "the model has no parameters, so there is nothing to train: register parameters, or modules "
                           "that have some, in its constructor."
                         : "the model has no trainable parameter, since all its " + std::to_string(count) +
                               " are frozen: leave requires_grad on, in configure_model, for what is to be trained.");
}

/// Refuses two tensors of the model that share memory without being one tensor, as `set_data` makes them, if one of
/// them is a parameter. Strategies move and cut parameters, which would silently untie the two; and on one device each
/// would have a gradient and an optimizer's state of its own.
/// @throws Error(user_code) naming both
inline void check_memory(const torch::nn::Module& module) {
  struct Place {
    const c10::StorageImpl* storage;
    std::size_t begin, end;  // bytes
    bool is_parameter;
    std::string name;
  };
  std::vector<Place> places;
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto add = [&](const std::string& name, const torch::Tensor& tensor, bool is_parameter) {
    if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0 || !tensor.is_non_overlapping_and_dense() ||
        !seen.insert(tensor.unsafeGetTensorImpl()).second)
      return;
    const std::size_t begin = std::size_t(tensor.storage_offset()) * tensor.element_size();
    places.push_back({tensor.storage().unsafeGetStorageImpl(), begin, begin + tensor.nbytes(), is_parameter, name});
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value(), true);
  for (const auto& item : module.named_buffers()) add(item.key(), item.value(), false);

  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::tie(a.storage, a.begin, a.end) < std::tie(b.storage, b.begin, b.end);
  });
  const auto words = [](const Place& place) {
    return (place.is_parameter ? "the parameter '" : "the buffer '") + place.name + "'";
  };
  for (std::size_t i = 0; i < places.size(); ++i)
    for (std::size_t j = i + 1;
         j < places.size() && places[j].storage == places[i].storage && places[j].begin < places[i].end; ++j)
      if (places[i].is_parameter || places[j].is_parameter)
        throw Error(ExitCode::user_code,
                    words(places[i]) + " and " + words(places[j]) +
                        " share memory but are two tensors, which training would untie: keep one of them in the model "
                        "and use it in both places, as in torch::linear(x, head->weight).");
}

}  // namespace dovetail
