// SPDX-License-Identifier: Apache-2.0
// Which settings are run for each pair, and what each must be equal to.
#pragma once

#include <set>

#include "parity/emulation.hpp"
#include "parity/pairs.hpp"
#include "parity/report.hpp"

namespace parity {

/// Every model x accumulation with one optimizer: Adam as users run it, or SGD with sums in rank order, whose result is
/// known to the bit.
inline void add_accumulations(std::vector<Setting>& list, OptimizerKind optimizer) {
  for (ModelKind model : {ModelKind::mlp, ModelKind::odd, ModelKind::frozen, ModelKind::tied})
    for (int64_t accumulate : {1, 2, 3}) {
      // Longer windows end either with a tail or, of a number of batches that they do not divide, with a shorter window
      // that has the tail.
      const int64_t even = (accumulate == 3 ? 3 : 5) * accumulate, odd = accumulate == 1 ? even : even - 1;
      if (optimizer == OptimizerKind::adam)
        list.push_back({model, optimizer, accumulate, odd, accumulate == 1 ? Tail::none : Tail::padding, true});
      else
        list.push_back({model, optimizer, accumulate, even, Tail::padding, false, {}, true});
    }
}

/// Those, and momentum, clipping, a parameter above the size for flat homes, and batch norm.
inline std::vector<Setting> all_settings() {
  std::vector<Setting> list;
  add_accumulations(list, OptimizerKind::adam);
  list.push_back({ModelKind::mlp, OptimizerKind::momentum, 2, 10, Tail::shorter});
  list.push_back({ModelKind::wide, OptimizerKind::momentum, 2, 10, Tail::shorter, false, dovetail::clip_norm(0.3)});
  add_accumulations(list, OptimizerKind::sgd);
  list.push_back({ModelKind::odd, OptimizerKind::adam, 2, 9, Tail::padding, true, dovetail::clip_norm(0.3)});
  list.push_back({ModelKind::tied, OptimizerKind::sgd, 1, 5, Tail::padding, false, dovetail::clip_value(0.02), true});
  list.push_back({ModelKind::batch_norm, OptimizerKind::sgd, 1, 5, Tail::padding, false, {}, true});
  list.push_back({ModelKind::batch_norm, OptimizerKind::sgd, 2, 10, Tail::by_two, false, {}, true});
  return list;
}

/// Every fourth setting makes a part that has both optimizers with accumulation 1, 2 and 3.
constexpr std::size_t parts = 4;

/// What the pairs of the `precision`-th precision run on so many ranks: all, or a part. Of the parts every one meets
/// every precision and every number of ranks, and on one to four ranks together each pair runs all settings.
inline std::vector<Setting> parity_settings(int ranks, std::size_t precision, bool all) {
  const auto settings = all_settings();
  std::vector<Setting> list;
  for (std::size_t i = 0; i < settings.size(); ++i)
    if (all || (i + precision + std::size_t(ranks)) % parts == 0) list.push_back(settings[i]);
  return list;
}

/// One setting as one pair ran it.
struct Ran {
  const PairRow* row;
  Setting setting;
  Outcome outcome;
  [[nodiscard]] std::string name() const { return row->name() + ", " + setting.text(); }
};

/// Checks that all ranks hold the same bits.
inline void compare_ranks(dovetail::Communicator& comm, const std::vector<Ran>& all, Report& report) {
  if (comm.size() == 1) return;
  std::string mine;
  for (const Ran& ran : all) mine += std::to_string(fingerprint(ran.outcome)) + "\n";
  std::vector<std::istringstream> lists;
  for (const std::string& text : all_gather_text(comm, mine)) lists.emplace_back(text);
  for (const Ran& ran : all) {
    std::set<std::string> different;
    for (auto& list : lists) {
      std::string line;
      std::getline(list, line);
      different.insert(line);
    }
    if (comm.rank() == 0) report.add("T59 all ranks hold the same bits", ran.name(), different.size() == 1);
  }
}

/// Compares with the two references. The ranks share the references out among themselves; each is computed once for all
/// strategies that must be equal to it.
class References {
 public:
  References(dovetail::Communicator& comm, Report& report) : comm_(comm), report_(report) {}

  void compare(const Ran& ran) {
    const auto formats = formats_of(ran.row->precision);
    if (!formats) {
      report_.add("known to the oracle", ran.row->precision, false,
                  "formats_of in parity/oracle.hpp must be told what this precision means");
      return;
    }
    compare_emulated(ran, *formats);
    if (!formats->low() && ran.setting.model != ModelKind::batch_norm) compare_plain(ran, *formats);
  }

 private:
  /// In ulps for low formats. Where weights are stored in one, a sum in another order may make one rounding of a weight
  /// below 1 fall the other way; where they are fp32, only what is computed from them may.
  static double tolerance(const Ran& ran, const Formats& formats) {
    if (formats.low()) return formats.casts_model ? 0.5 : 0.01;
    if (formats.rounds_to == torch::kFloat64) return 1e-12;
    return ran.setting.optimizer == OptimizerKind::adam ? 1e-5 : 1e-6;
  }

  void compare_plain(const Ran& ran, const Formats& formats) {
    const Outcome* reference = find("plain " + std::to_string(int(formats.rounds_to)) + ran.setting.text(), [&] {
      return train_plainly(ran.setting, comm_.size(), formats.rounds_to, shuffled_rows);
    });
    if (!reference) return;
    const Difference found = difference(ran.outcome, *reference);
    report_.add(label(ran) + "one device, " + name_of(ran.setting.optimizer), ran.name(), found.worst,
                tolerance(ran, formats), found.where);
  }

  void compare_emulated(const Ran& ran, const Formats& formats) {
    const bool by_batch = ran.row->strategy_traits.shards >= dovetail::Shards::gradients && comm_.size() > 1;
    const Outcome* reference = find(std::to_string(by_batch) + ran.row->precision + ran.setting.text(), [&] {
      return Emulation(ran.setting, formats, comm_.size(), by_batch, shuffled_rows).train();
    });
    if (!reference) return;
    const Difference found = difference(ran.outcome, *reference);
    // Where sums are in rank order and an update does not depend on where an element lies, nothing is left to chance.
    if (ran.setting.deterministic)
      report_.add(label(ran) + "emulated ranks, deterministic: elements that differ", ran.name(),
                  double(found.elements), 0, found.where);
    else if (formats.low())
      report_.add(label(ran) + "emulated ranks, ulps at 1", ran.name(), found.worst / formats.ulp(),
                  tolerance(ran, formats), found.where);
    else
      report_.add(label(ran) + "emulated ranks, " + name_of(ran.setting.optimizer), ran.name(), found.worst,
                  tolerance(ran, formats), found.where);
  }

  static std::string label(const Ran& ran) {
    std::string words = ran.row->precision;
    words.resize(std::max<std::size_t>(words.size(), 12), ' ');
    return words + " ";
  }

  template <class Make>
  const Outcome* find(const std::string& key, Make&& make) {
    const auto at = known_.find(key);
    if (at != known_.end()) return at->second ? &*at->second : nullptr;
    const bool mine = int(known_.size()) % comm_.size() == comm_.rank();
    auto& made = known_[key];
    if (mine) made = make();
    return made ? &*made : nullptr;
  }

  dovetail::Communicator& comm_;
  Report& report_;
  std::map<std::string, std::optional<Outcome>> known_;
};

}  // namespace parity
