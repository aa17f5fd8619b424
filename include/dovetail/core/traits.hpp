// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include <dovetail/core/stage.hpp>

namespace dovetail {

/// What a Strategy cuts over the ranks, each including the one before it: "gradients" means that optimizer state is cut
/// too.
enum class Shards { nothing, optimizer_state, gradients, parameters };

/// How a Precision scales the loss: not at all; with a scaler that decides from what this rank sees whether a step is
/// skipped; or with one that decides for all ranks together.
enum class Scaler { none, local, collective };

/// A number format, as a value. The tag types `FP16`, `BF16` are in precision/formats.hpp.
enum class Format { fp16, bf16, fp32, fp64 };

constexpr std::string_view name_of(Format format) {
  switch (format) {
    case Format::fp16:
      return "fp16";
    case Format::bf16:
      return "bf16";
    case Format::fp32:
      return "fp32";
    case Format::fp64:
      return "fp64";
  }
  return {};
}

/// Which kinds of gradient clipping a Strategy can do.
struct Clips {
  bool norm = true;   ///< by the norm over all parameters of all ranks
  bool value = true;  ///< each element by itself
};

/// No limit, where a trait is a number.
inline constexpr unsigned any_number = ~0u;

/// What a Strategy says about itself, written with designated initializers so that a misspelt trait does not compile:
/// `static constexpr StrategyTraits traits{.wraps_model = true};`. Every default is what an empty Strategy does.
struct StrategyTraits {
  bool delays_optimizer_setup =
      false;                         ///< optimizers can be made only after wrap_model (their tensors come from there)
  bool rebuilds_optimizers = false;  ///< has the stage rebuild_optimizers
  bool wraps_model = false;          ///< has the stage wrap_model
  Shards shards = Shards::nothing;
  bool cuts_tensors = false;     ///< an optimizer may see a part of a tensor: only element-wise optimizers are right
  bool accepts_closure = false;  ///< optimizers that evaluate the loss several times in a step work
  Clips clips{};
  unsigned max_optimizers = any_number;
  bool exact = true;      ///< equals one device on the concatenated batch, within rounding
  bool resumable = true;  ///< its state can be saved and restored
  Edges order{};          ///< edges of its own in the set-up graph
};

/// What a Precision says about itself, as StrategyTraits.
struct PrecisionTraits {
  bool wraps_optimizers = false;  ///< has the stage wrap_optimizers
  bool wraps_full_parameters =
      false;  ///< what it wraps are the whole model's parameters, so it must come before wrap_model
  Scaler scaler = Scaler::none;
  Format compute = Format::fp32;  ///< the format most operators of the forward compute in
  Format storage = Format::fp32;  ///< the format the model's weights are kept in
  bool keeps_masters = false;     ///< the optimizer steps fp32 masters of weights that are kept in a lower format
  bool accepts_closure = false;
  bool resumable = true;
  Edges order{};
};

/// What an optimizer's type says about it.
struct OptimizerTraits {
  bool elementwise = false;       ///< an element's update depends on nothing but that element's gradient and state
  bool requires_closure = false;  ///< step() evaluates the loss by itself
  bool unscales_itself = false;   ///< step() divides gradients by the loss scale by itself
};

/// Traits of an optimizer's type. A type that is not known is taken as not element-wise, which is the safe side.
/// Specialise it for your own: `template <> inline constexpr OptimizerTraits
/// dovetail::optimizer_traits<Lion>{.elementwise = true};`
template <class Optimizer>
inline constexpr OptimizerTraits optimizer_traits{};

/// Does this Strategy make optimizers after wrapping the model?
template <class Strategy>
inline constexpr bool delays_optimizer_setup = Strategy::traits.delays_optimizer_setup;

/// Does this Precision put something beside the optimizers?
template <class Precision>
inline constexpr bool wraps_optimizers = Precision::traits.wraps_optimizers;

}  // namespace dovetail
