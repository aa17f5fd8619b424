// SPDX-License-Identifier: Apache-2.0
// The Trainers that the tests of the loop share.
#include "support/loop_run.hpp"

#include <dovetail/policies.hpp>

namespace loop {

namespace {

template <class Strategy, class Precision, class Observer>
Result with(const Setting& setting, Script& script, Data& data, Observer& observer, Precision precision = {}) {
  dovetail::Trainer<Strategy, Precision> trainer(setting.options, Strategy{}, precision);
  return trainer.fit(script, data, observer);
}

}  // namespace

Result fit(const Setting& setting, Script& script, Data& data, Watch& watch) {
  using namespace dovetail;
  switch (setting.pair) {
    case Pair::fp32:
      return with<SingleDevice, FP32>(setting, script, data, watch);
    case Pair::ddp:
      return with<DDP, FP32>(setting, script, data, watch);
    case Pair::scaled:
      return with<SingleDevice>(setting, script, data, watch, Scaled(setting.scaler));
    case Pair::fp16_mixed:
      return with<SingleDevice>(setting, script, data, watch, FP16Mixed(setting.scaler));
    case Pair::fp16_true:
      return with<SingleDevice, FP16True>(setting, script, data, watch);
    case Pair::apex_o3:
      break;
  }
  return with<SingleDevice, Apex<O3>>(setting, script, data, watch);
}

Result fit(const Setting& setting, Script& script, Data& data, dovetail::EarlyStopping& stopping) {
  return with<dovetail::SingleDevice, dovetail::FP32>(setting, script, data, stopping);
}

Twice fit_twice(const Setting& setting, Script& script, Data& data, Watch& watch) {
  dovetail::Trainer<dovetail::SingleDevice, Scaled> trainer(setting.options, {}, Scaled(setting.scaler));
  Twice twice;
  twice.first = trainer.fit(script, data, watch);
  twice.weights_of_first = weights(twice.first);
  twice.second = trainer.fit(script, data, watch);
  return twice;
}

}  // namespace loop
