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

/// The options of a precision that has none, where a sibling has some.
struct NoOptions {};

}  // namespace dovetail
