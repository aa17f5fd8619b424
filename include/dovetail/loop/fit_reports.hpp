// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/data/dataset.hpp>
#include <dovetail/optim/optimizer_types.hpp>

/// Reports of fit that need to know LibTorch's types; those that do not are in core/hook_report.hpp.

namespace dovetail {

/// What fit may be given as data.
template <class D>
concept FitData = Dataset<D> || DataModule<D>;

namespace detail {

template <class R>
inline constexpr bool returns_optimizers = OptimizerResult<R>;
template <class D>
inline constexpr bool is_data = FitData<D>;

template <class Returned>
struct NoOptimizerResult {
  static_assert(returns_optimizers<Returned>,
                "dovetail-E026: configure_optimizers returns no optimizer. Use return AdamW(p, {...}), by value, "
                "unique_ptr or shared_ptr, scheduled(...), or a std::tuple of these.");
};

template <class Data>
struct NoData {
  static_assert(
      is_data<Data>,
      "dovetail-E027: the data is neither a data set nor a data module. Use a class with int64_t size() const "
      "and void fetch(std::span<const int64_t>, Batch&) const, or one with train_data() const.");
};

}  // namespace detail

}  // namespace dovetail
