// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn.h>

#include <type_traits>

namespace dovetail {

/// Base for your own modules whose weights go into matrix products or convolutions only, for which autocast would cast
/// them at every use: FSDP then gathers them in the compute format at once, which halves what is sent.
struct GathersLow {
  virtual ~GathersLow() = default;
};

namespace detail {

/// The modules of LibTorch whose operators take weights of a low format together with fp32 inputs under autocast. Norms
/// and Bilinear do not, and embeddings would round what they look up.
template <template <class...> class List>
using LowModules = List<torch::nn::LinearImpl, torch::nn::Conv1dImpl, torch::nn::Conv2dImpl, torch::nn::Conv3dImpl,
                        torch::nn::ConvTranspose1dImpl, torch::nn::ConvTranspose2dImpl, torch::nn::ConvTranspose3dImpl,
                        torch::nn::RNNImpl, torch::nn::LSTMImpl, torch::nn::GRUImpl, torch::nn::RNNCellImpl,
                        torch::nn::LSTMCellImpl, torch::nn::GRUCellImpl, torch::nn::MultiheadAttentionImpl>;

template <class... Modules>
struct AnyOf {
  template <class M>
  static constexpr bool is_base_of = (std::is_base_of_v<Modules, M> || ...);
  static bool matches(const torch::nn::Module& module) { return (dynamic_cast<const Modules*>(&module) || ...); }
};

}  // namespace detail

/// Does FSDP gather the weights that M itself registers in the precision's compute format? Only under a mixed
/// precision, where they are stored in fp32. Specialise it for the Impl of a module of your own that you use as
/// `Unit<M>`; a module inside a unit says so by deriving from GathersLow.
template <class M>
inline constexpr bool gathers_low =
    std::is_base_of_v<GathersLow, M> || detail::LowModules<detail::AnyOf>::template is_base_of<M>;

namespace detail {

inline bool gathers_low_at_run_time(const torch::nn::Module& module) {
  return dynamic_cast<const GathersLow*>(&module) || LowModules<AnyOf>::matches(module);
}

}  // namespace detail
}  // namespace dovetail
