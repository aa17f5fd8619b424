// SPDX-License-Identifier: Apache-2.0
// What must be equal to itself: a run to its repetition, a scaled run to one that is not; and what must not: the
// dropout of two ranks.
#pragma once

#include "parity/cases.hpp"

namespace parity {

/// Bits of all masks of a run, for comparing.
inline std::string text_of(const std::vector<Tensor>& masks) {
  std::string bits;
  for (const Tensor& mask : masks)
    for (const Tensor flat = mask.flatten().to(torch::kByte);
         const uint8_t bit : std::span(flat.const_data_ptr<uint8_t>(), std::size_t(flat.numel())))
      bits += bit ? '1' : '0';
  return bits;
}

/// Each pair runs the same twice with one Trainer: dropout, a short tail, accumulation and clipping, with the reduction
/// that is not deterministic by promise.
inline void check_repeats(dovetail::Communicator& comm, const std::vector<PairRow>& rows, Report& report) {
  const Setting setting{ModelKind::dropout, OptimizerKind::adam, 2, 9, Tail::shorter, true, dovetail::clip_norm(0.3)};
  for (const PairRow& row : rows) {
    const auto runs = row.fit(setting, 2);
    const std::string name = row.name() + ", " + setting.text();
    report.add("the same run twice: the same bits", name, fingerprint(runs[0]) == fingerprint(runs[1]));
    const std::string mine = text_of(runs[0].masks);
    report.add("the same run twice: the same dropout", name, mine == text_of(runs[1].masks));
    report.add("dropout drops about a half", name,
               std::abs(double(std::count(mine.begin(), mine.end(), '1')) / double(mine.size()) - 0.5) < 0.1);
    // The first forward has as many samples on every rank.
    const auto all = all_gather_text(comm, text_of({runs[0].masks.front()}));
    if (comm.rank() == 0 && comm.size() > 1)
      report.add("ranks draw different dropout", name,
                 std::set<std::string>(all.begin(), all.end()).size() == all.size());
  }
}

/// A loss scale that is a power of two changes no bit, where nothing over- or underflows: in fp32 at no scale tried
/// here, in fp16 at scales that keep the smallest gradients of these models above 2^-14.
inline void check_scales(dovetail::Communicator& comm, const std::vector<PairRow>& rows, Report& report) {
  Setting setting{ModelKind::mlp, OptimizerKind::adam, 2, 9, Tail::shorter};
  const auto scaled = [&](const PairRow& row, double scale) {
    setting.scale = scale;
    return row.fit(setting, 1).front();
  };
  const auto compare = [&](const std::string& name, const Outcome& with, const Outcome& without) {
    const Difference found = difference(with, without);
    if (comm.rank() == 0)
      report.add("P34 P59 a loss scale that is a power of two: elements that differ", name, double(found.elements), 0,
                 found.where);
  };
  for (const PairRow& row : scaled_rows()) {
    if (comm.size() > 1 && row.strategy == "single") continue;
    const auto plain = std::find_if(rows.begin(), rows.end(), [&](const PairRow& other) {
      return other.strategy == row.strategy && other.precision == "fp32";
    });
    if (plain == rows.end()) continue;
    const Outcome unscaled = scaled(*plain, 0);
    for (double scale : {1.0, 1024.0, 65536.0})
      compare(row.name() + ", " + setting.text(), scaled(row, scale), unscaled);
  }
  for (const PairRow& row : rows)
    if (row.precision_traits.scaler != dovetail::Scaler::none)
      compare(row.name() + ", scales 256 and 4096", scaled(row, 4096), scaled(row, 256));
}

}  // namespace parity
