// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/callback/text.hpp>
#include <dovetail/loop/state.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <iostream>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace dovetail {

namespace detail {

/// `torch::nn::Conv2dImpl` -> `Conv2d`; a Unit<M>, whose class also carries the signature of forward, -> `Unit<M>`.
inline std::string pretty_type_name(std::string name) {
  for (const std::string_view space : {"torch::nn::", "dovetail::detail::", "dovetail::", "(anonymous namespace)::"})
    for (auto at = name.find(space); at != name.npos; at = name.find(space, at)) name.erase(at, space.size());
  const auto in_identifier = [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)); };
  for (auto at = name.find("Impl"); at != name.npos; at = name.find("Impl", at)) {
    const bool ends = at + 4 == name.size() || !in_identifier(name[at + 4]);
    if (ends && at > 0 && in_identifier(name[at - 1]))
      name.erase(at, 4);
    else
      at += 4;
  }
  constexpr std::string_view unit = "UnitImplFor<";
  if (name.starts_with(unit)) {
    std::size_t end = unit.size();
    for (int depth = 0; end < name.size() && (depth > 0 || (name[end] != ',' && name[end] != '>')); ++end)
      depth += (name[end] == '<') - (name[end] == '>');
    name = "Unit<" + name.substr(unit.size(), end - unit.size()) + ">";
  }
  return name;
}

/// Counts parameters as the whole model has them, also where a strategy has cut and freed them: by the shapes that
/// set-up has noted.
class ParameterCounter {
 public:
  struct Count {
    int64_t all = 0, trainable = 0, bytes = 0;
  };

  explicit ParameterCounter(const std::vector<Slot>& slots) {
    for (const Slot& slot : slots) slots_.emplace(slot.model.unsafeGetTensorImpl(), &slot);
  }

  /// Each tensor once, whatever names it has.
  Count count(const std::vector<torch::Tensor>& parameters) const {
    Count total;
    std::unordered_set<c10::TensorImpl*> seen;
    for (const torch::Tensor& parameter : parameters) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      const auto slot = slots_.find(parameter.unsafeGetTensorImpl());
      const bool known = slot != slots_.end();
      const torch::IntArrayRef shape = known ? torch::IntArrayRef(slot->second->shape) : parameter.sizes();
      const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
      total.all += elements;
      if (known || parameter.requires_grad()) total.trainable += elements;
      // Where units are gathered in a lower format, the format that is kept is that of this rank's piece.
      const torch::Tensor& kept = known && slot->second->held.defined() ? slot->second->held : parameter;
      total.bytes += elements * static_cast<int64_t>(kept.element_size());
    }
    return total;
  }

 private:
  std::unordered_map<c10::TensorImpl*, const Slot*> slots_;
};

using SummaryRow = std::array<std::string, 5>;

inline SummaryRow summary_row(std::string name, std::string type, const ParameterCounter::Count& count) {
  return {std::move(name), std::move(type), grouped(count.all), grouped(count.trainable), byte_text(count.bytes)};
}

inline void add_summary_rows(std::vector<SummaryRow>& rows, const torch::nn::Module& module, const std::string& prefix,
                             int depth, const ParameterCounter& counter) {
  if (depth == 0) return;
  for (const auto& child : module.named_children()) {
    const std::string name = prefix + child.key();
    rows.push_back(
        summary_row(name, pretty_type_name(child.value()->name()), counter.count(child.value()->parameters())));
    add_summary_rows(rows, *child.value(), name + ".", depth - 1, counter);
  }
}

inline std::string table_text(const std::vector<SummaryRow>& rows) {
  std::array<std::size_t, 5> widths{};
  for (const SummaryRow& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  const std::string rule(std::accumulate(widths.begin(), widths.end(), 2 * (widths.size() - 1)), '-');
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (r == 1 || r + 1 == rows.size()) text += rule + "\n";
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      const std::string pad(widths[i] - rows[r][i].size(), ' ');
      text += (i > 0 ? "  " : "") + (i < 2 ? rows[r][i] + pad : pad + rows[r][i]);  // names left, numbers right
    }
    text += '\n';
  }
  return text;
}

}  // namespace detail

/// The model as a table: modules with their types, numbers of parameters, how many of these are trained, and bytes in
/// the dtype in which the model holds them. Each row counts the modules inside it too; what is tied counts once in each
/// row and in the total. Sizes are those of the whole model, whatever part of it this rank holds.
///
/// @param slots  of the run; what is in none of them is taken to be as large as its tensor says
/// @param depth  of modules that get a row: 1 for the children of the model; negative: all
inline std::string model_summary(const torch::nn::Module& model, const std::vector<Slot>& slots = {}, int depth = 2) {
  const detail::ParameterCounter counter(slots);
  std::vector<detail::SummaryRow> rows{{"module", "type", "parameters", "trainable", "bytes"}};
  for (const auto& own : model.named_parameters(/*recurse=*/false))
    rows.push_back(detail::summary_row(own.key(), "parameter", counter.count({own.value()})));
  detail::add_summary_rows(rows, model, "", depth, counter);
  rows.push_back(
      detail::summary_row("total", detail::pretty_type_name(model.name()), counter.count(model.parameters())));
  return detail::table_text(rows);
}

/// Prints the model's summary on rank 0 before the first step.
class ModelSummary {
 public:
  struct Options {
    int depth = 2;                   ///< of modules that get a row; negative: all
    std::ostream* out = &std::cout;  ///< must live as long as the fit
  };

  ModelSummary() : ModelSummary(Options{}) {}
  explicit ModelSummary(Options options) : options_(options) {}

  void on_fit_start(LoopState& state) const {
    if (state.run.rank() == 0)
      *options_.out << model_summary(*state.run.module, state.run.gradients.slots, options_.depth) << std::flush;
  }

 private:
  Options options_;
};

}  // namespace dovetail
