// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dovetail {

/// How the loss scale moves: it starts at `init`, is multiplied by `growth` after `interval` steps in a row that were
/// taken, and by `backoff` after a step that overflowed. The defaults are those of PyTorch's GradScaler, and of Apex.
struct ScalerOptions {
  double init = 65536.0;
  double growth = 2.0;
  double backoff = 0.5;
  int interval = 2000;

  template <class Visit>
  constexpr void each(Visit&& visit) const {
    visit("init", init);
    visit("growth", growth);
    visit("backoff", backoff);
    visit("interval", interval);
  }
};

/// Options of `Apex<O1>` and `Apex<O2>`: those of their scalers, one for each loss that training_step returns.
struct ApexOptions {
  double init = ScalerOptions{}.init;
  double growth = ScalerOptions{}.growth;
  double backoff = ScalerOptions{}.backoff;
  int interval = ScalerOptions{}.interval;

  /// Does what Apex did, where Dovetail does better by default: the scale moves after every backward pass, so that with
  /// accumulation the interval counts micro-batches and the scale may change within a window, and it ends at 2^24; and
  /// masters are cloned after the cast, so that they begin with the weights as fp16 has rounded them. With several
  /// ranks it costs one small collective for each micro-batch but the last of a window. (Apex had no smallest scale;
  /// there is one here in either mode.)
  bool apex_literal = false;

  constexpr ScalerOptions scaler() const { return {init, growth, backoff, interval}; }

  template <class Visit>
  constexpr void each(Visit&& visit) const {
    scaler().each(visit);
    visit("apex_literal", apex_literal);
  }
};

/// The options of a precision that has none, where a sibling has some.
struct NoOptions {};

}  // namespace dovetail
