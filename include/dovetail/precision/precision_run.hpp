// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/precision/apex.hpp>
#include <dovetail/precision/autocast_guard.hpp>
#include <dovetail/precision/convert.hpp>
#include <dovetail/precision/fp32.hpp>
#include <dovetail/precision/fp64.hpp>
#include <dovetail/precision/lost_updates.hpp>
#include <dovetail/precision/master_weights.hpp>
#include <dovetail/precision/masters.hpp>
#include <dovetail/precision/mixed.hpp>
#include <dovetail/precision/true.hpp>
#include <dovetail/run/context.hpp>

namespace dovetail {

/// What a built-in precision consists of. Each is a choice of these parts; there is no other difference between them.
struct PrecisionParts {
  bool autocasts = false;          ///< the forward runs under autocast to the compute format
  bool casts_model = false;        ///< weights and inputs are cast to the storage format
  bool spares_batch_norm = false;  ///< batch norms keep fp32 when the model is cast
  std::optional<ScalerOptions> scaler{};
  bool scaler_per_loss = false;  ///< each loss of a Task has one of its own
  bool apex_literal = false;     ///< ApexOptions::apex_literal
};

/// The work of every built-in precision in one run.
class PrecisionRun : public PrecisionBase {
 public:
  explicit PrecisionRun(PrecisionParts parts) : parts_(parts) {}

  void environment(PrecisionContext& run) {
    if (parts_.scaler)
      run.scaler.emplace(*parts_.scaler, parts_.apex_literal ? apex_largest_scale : GradScaler::largest_scale);
    if (parts_.scaler_per_loss) run.further_scalers.assign(std::size_t(run.losses - 1), *run.scaler);
    run.scale_per_backward = parts_.apex_literal;
    if (parts_.casts_model) run.input_dtype = dtype_of(run.precision.storage);
    if (parts_.autocasts) autocast_dtype_ = dtype_of(run.precision.compute);
    device_ = run.device.type();
  }

  void convert_model(PrecisionContext& run) {
    if (!parts_.casts_model) return;
    if (run.precision.keeps_masters && !parts_.apex_literal) masters_.remember(run);
    run.cut.convert(dtype_of(run.precision.storage));
    dovetail::convert_model(*run.module, dtype_of(run.precision.storage), parts_.spares_batch_norm);
    if (run.precision.keeps_masters && parts_.apex_literal) masters_.remember(run);
  }

  void wrap_optimizers(PrecisionContext& run) {
    if (run.precision.keeps_masters) masters_.wrap(run);
  }

  AutocastGuard forward_guard(PrecisionContext&) { return {device_, autocast_dtype_}; }

  void before_step(PrecisionContext& run) {
    if (stores_low(run)) lost_updates_.before_step(run);
  }

  void after_step(PrecisionContext& run) {
    if (stores_low(run)) lost_updates_.after_step(run);
  }

 private:
  static constexpr double apex_largest_scale = 0x1p24;

  /// Are low-format weights stepped as they are?
  bool stores_low(const PrecisionContext& run) const {
    return parts_.casts_model && !run.precision.keeps_masters && run.precision.storage < Format::fp32;
  }

  PrecisionParts parts_;
  Masters masters_;
  LostUpdates lost_updates_;
  c10::DeviceType device_ = c10::DeviceType::CPU;
  std::optional<torch::ScalarType> autocast_dtype_;
};

namespace detail {

/// A run that is constructed from its policy, as RunOf asks.
template <class Policy>
struct PrecisionRunOf : PrecisionRun {
  explicit PrecisionRunOf(const Policy& policy) : PrecisionRun(parts_of(policy)) {}

 private:
  static PrecisionParts parts_of(const FP64&) { return {.casts_model = true}; }
  static PrecisionParts parts_of(const BF16Mixed&) { return {.autocasts = true}; }
  static PrecisionParts parts_of(const FP16Mixed& policy) { return {.autocasts = true, .scaler = policy.options}; }
  static PrecisionParts parts_of(const BF16True&) { return {.casts_model = true}; }
  static PrecisionParts parts_of(const FP16True&) { return {.casts_model = true}; }

  template <class Format>
  static PrecisionParts parts_of(const MasterWeights<Format>& policy) {
    PrecisionParts parts{.casts_model = true};
    if constexpr (MasterWeights<Format>::scales_loss) parts.scaler = policy.options;
    return parts;
  }

  template <class Level>
  static PrecisionParts parts_of(const Apex<Level>& policy) {
    PrecisionParts parts{.autocasts = std::is_same_v<Level, O1>,
                         .casts_model = Apex<Level>::casts_model,
                         .spares_batch_norm = std::is_same_v<Level, O2>};
    if constexpr (Apex<Level>::scales_loss) {
      parts.scaler = policy.options.scaler();
      parts.scaler_per_loss = true;
      parts.apex_literal = policy.options.apex_literal;
    }
    return parts;
  }
};

}  // namespace detail

template <>
struct RunOf<FP64> {
  using type = detail::PrecisionRunOf<FP64>;
};
template <>
struct RunOf<BF16Mixed> {
  using type = detail::PrecisionRunOf<BF16Mixed>;
};
template <>
struct RunOf<FP16Mixed> {
  using type = detail::PrecisionRunOf<FP16Mixed>;
};
template <>
struct RunOf<BF16True> {
  using type = detail::PrecisionRunOf<BF16True>;
};
template <>
struct RunOf<FP16True> {
  using type = detail::PrecisionRunOf<FP16True>;
};
template <class Format>
struct RunOf<MasterWeights<Format>> {
  using type = detail::PrecisionRunOf<MasterWeights<Format>>;
};
template <class Level>
struct RunOf<Apex<Level>> {
  using type = detail::PrecisionRunOf<Apex<Level>>;
};

}  // namespace dovetail
