// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/loop/exact_number.hpp>
#include <dovetail/loop/observer.hpp>

#include <string>
#include <string_view>
#include <type_traits>

namespace dovetail {

namespace detail {

template <class Value>
std::string text_of_option(const Value& value) {
  if constexpr (std::is_convertible_v<const Value&, std::string_view>)
    return std::string(value);
  else if constexpr (std::is_same_v<Value, bool>)
    return value ? "true" : "false";
  else if constexpr (std::is_floating_point_v<Value>)
    return exact_number(value);
  else
    return std::to_string(value);
}

}  // namespace detail

/// The options of one policy: "fsdp.prefetch" and its value. See StrategyBase.
template <class Policy>
ResolvedOptions options_of_policy(const Policy& policy) {
  ResolvedOptions list;
  const auto add = [&list](std::string_view name, const auto& value) {
    list.emplace_back(std::string(Policy::name) + "." + std::string(name), detail::text_of_option(value));
  };
  if constexpr (requires { policy.options.each(add); }) policy.options.each(add);
  return list;
}

/// The policies' names and options and everything of TrainerOptions that changes results, names and values, as loggers
/// get them.
inline ResolvedOptions resolved_options(const RunContext& run) {
  const TrainerOptions& options = run.options;
  ResolvedOptions list;
  const auto add = [&list](const char* name, const auto& value) {
    list.emplace_back(name, detail::text_of_option(value));
  };
  add("strategy", run.strategy_name);
  add("precision", run.precision_name);
  add("ranks", run.world_size());
  add("device", options.device);
  add("max_epochs", options.max_epochs);
  add("max_steps", options.max_steps);
  add("batch_size", options.batch_size);
  add("accumulate", options.accumulate);
  add("gradient_clip", !options.gradient_clip                                   ? "none"
                       : options.gradient_clip->kind == ClipOptions::Kind::norm ? "norm"
                                                                                : "value");
  if (options.gradient_clip) add("gradient_clip_limit", options.gradient_clip->limit);
  add("seed", options.seed);
  add("shuffle", options.shuffle);
  add("drop_last", options.drop_last);
  add("limit_train_batches", options.limit_train_batches);
  add("limit_validation_batches", options.limit_validation_batches);
  add("sanity_validation_batches", options.sanity_validation_batches);
  add("validate_every", options.validate_every);
  add("log_every", options.log_every);
  add("deterministic", options.deterministic);
  add("find_unused", options.find_unused);
  for (const auto& option : run.policy_options) list.push_back(option);
  return list;
}

}  // namespace dovetail
