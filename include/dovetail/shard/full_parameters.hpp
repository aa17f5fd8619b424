// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/shard/whole_unit.hpp>

#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <unordered_set>
#include <vector>

namespace dovetail {

struct FullParametersOptions {
  bool write_back = false;  ///< changes made inside become the model's. Each rank keeps what it wrote into the part
                            ///< that it owns, so all ranks must write the same
  bool rank0_only = false;  ///< whole on rank 0 alone; the others take part, need no memory, and may not read
};

namespace detail {

using ParameterSet = std::unordered_set<const c10::TensorImpl*>;

inline bool has_one_of(const ParameterSet& parameters, const std::vector<torch::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const torch::Tensor& tensor) { return parameters.contains(tensor.unsafeGetTensorImpl()); });
}

/// Whoever has cut the parameters of some model, or keeps something beside them, while it lives: scopes of its thread
/// ask all of them.
class ParameterHolder {
 public:
  ParameterHolder() { all().push_back(this); }
  ParameterHolder(const ParameterHolder&) = delete;
  ParameterHolder& operator=(const ParameterHolder&) = delete;
  virtual ~ParameterHolder() { std::erase(all(), this); }

  static std::vector<ParameterHolder*>& all() {
    thread_local std::vector<ParameterHolder*> holders;
    return holders;
  }

  /// Those of its units that have one of the parameters, whole. A collective.
  virtual std::vector<std::shared_ptr<WholeUnit>> make_whole(const ParameterSet&, bool /*on_every_rank*/) { return {}; }
  /// Some of the parameters may have been changed; they are still whole.
  virtual void written(const ParameterSet&) {}
};

}  // namespace detail

/// A scope in which the parameters of a model, or of a part of it, are whole, in the dtype in which they are stored:
///
///     void on_validation_end(dt::LoopState& state) {
///       const dt::FullParameters whole(*state.run.module);
///       norm = module.weight.norm().item<double>();
///     }
///
/// Under FSDP it gathers what is cut, one collective for each dtype of a unit, and frees it at its end; all ranks must
/// open and close it at the same point. Where nothing is cut it costs nothing, so the same code runs under every
/// strategy. A part of the model, such as one unit, gathers the units that its parameters are in and no others. Calls
/// of the model inside compute with what is whole and gather nothing of it.
///
/// With `write_back` the changes made inside become the model's, fp32 masters beside a low format included: a master
/// follows where its parameter is not what it would be rounded to. An exception that leaves the scope keeps them from
/// being written. Scopes may lie in each other. One that is still open when the next forward begins, or when
/// configure_model or the fit ends, makes that an error; with the fit it ends, writes nothing, and its destructor does
/// nothing. The end of a scope cannot throw: out of memory while
/// it writes ends the program.
///
/// @throws Error(user_code) while a forward or a backward runs; for options that exclude each other;
///         Error(ranks_disagree) in configure_model under deferred_building, where ranks have constructed other units
///         or opened other scopes
class FullParameters {
 public:
  explicit FullParameters(const torch::nn::Module& model, FullParametersOptions options = {})
      : writes_(options.write_back), exceptions_(std::uncaught_exceptions()) {
    if (options.write_back && options.rank0_only)
      throw Error(ExitCode::user_code,
                  "full_parameters cannot write back what only rank 0 has: leave out write_back or rank0_only.");
    for (const torch::Tensor& parameter : model.parameters()) parameters_.insert(parameter.unsafeGetTensorImpl());
    for (detail::ParameterHolder* holder : detail::ParameterHolder::all())
      for (auto& unit : holder->make_whole(parameters_, !options.rank0_only)) whole_.push_back(std::move(unit));
  }
  FullParameters(const FullParameters&) = delete;
  FullParameters& operator=(const FullParameters&) = delete;
  ~FullParameters() {
    if (!writes_ || std::uncaught_exceptions() > exceptions_) return;
    for (const auto& unit : whole_) unit->write_back();
    for (detail::ParameterHolder* holder : detail::ParameterHolder::all()) holder->written(parameters_);
  }

 private:
  detail::ParameterSet parameters_;
  std::vector<std::shared_ptr<detail::WholeUnit>> whole_;
  bool writes_;
  int exceptions_;
};

/// `const auto whole = full_parameters(model, {.write_back = true});`
[[nodiscard]] inline FullParameters full_parameters(const torch::nn::Module& model,
                                                    FullParametersOptions options = {}) {
  return FullParameters(model, options);
}

}  // namespace dovetail
