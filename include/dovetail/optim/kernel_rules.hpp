// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/optim/kernel_lanes.hpp>

#include <cmath>
#include <cstdint>

#if defined(__clang__)
#pragma float_control(push)
#pragma clang fp contract(off)
#else
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#endif

/// The update rules as the papers have them, on one register of each array. T is the format of the arithmetic; what
/// depends on the step only is computed in double and rounded once. A gradient is multiplied with `scale`, which is
/// 1 / divisor, negative where the objective is maximized.

namespace dovetail::detail {

/// One register of each of the arrays of an update.
template <class T, int bytes>
struct Registers {
  Lanes<T, bytes> param, grad, state[3];
};

/// Adam (Kingma and Ba, ICLR 2015, algorithm 1) with an L2 penalty, AdamW (Loshchilov and Hutter, ICLR 2019, algorithm
/// 2, with a weight decay of lr * weight_decay) and amsgrad (Reddi et al., ICLR 2018).
/// State: first moment, second moment, with amsgrad the largest second moment so far.
template <class T>
struct AdamRule {
  using Real = T;
  T scale, l2, keep, gain1, beta2, gain2, correct2, eps, rate;
  bool amsgrad;

  [[gnu::always_inline]] inline int states() const { return amsgrad ? 3 : 2; }

  template <int bytes>
  [[gnu::always_inline]] inline void apply(Registers<T, bytes>& r) const {
    r.grad = r.grad * scale;
    if (l2 != 0) r.grad = r.grad + r.param * l2;
    r.param = r.param * keep;
    r.state[0] = r.state[0] + (r.grad - r.state[0]) * gain1;
    r.state[1] = r.state[1] * beta2 + r.grad * r.grad * gain2;
    if (amsgrad) r.state[2] = r.state[2] >= r.state[1] ? r.state[2] : r.state[1];
    Lanes<T, bytes> spread = amsgrad ? r.state[2] : r.state[1];
    root<T, bytes>(spread);
    r.param = r.param - r.state[0] * rate / (spread * correct2 + eps);
  }
};

/// Options of both Adam and AdamW, at one step.
struct AdamStep {
  double scale = 1, lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  bool decoupled = false, amsgrad = false;
  int64_t step = 1;  ///< counted from 1

  template <class T>
  [[nodiscard]] AdamRule<T> rule() const {
    const double bias1 = 1 - std::pow(beta1, double(step)), bias2 = 1 - std::pow(beta2, double(step));
    return {T(scale),
            T(decoupled ? 0 : weight_decay),
            T(decoupled ? 1 - lr * weight_decay : 1),
            T(1 - beta1),
            T(beta2),
            T(1 - beta2),
            T(1 / std::sqrt(bias2)),
            T(eps),
            T(lr / bias1),
            amsgrad};
  }
};

/// Stochastic gradient descent as LibTorch has it. State: with momentum the momentum buffer.
template <class T>
struct SGDRule {
  using Real = T;
  T scale, l2, momentum, gain, rate;
  bool nesterov;

  [[gnu::always_inline]] inline int states() const { return momentum != 0; }

  template <int bytes>
  [[gnu::always_inline]] inline void apply(Registers<T, bytes>& r) const {
    r.grad = r.grad * scale;
    if (l2 != 0) r.grad = r.grad + r.param * l2;
    if (momentum != 0) {
      r.state[0] = r.state[0] * momentum + r.grad * gain;
      r.grad = nesterov ? r.grad + r.state[0] * momentum : r.state[0];
    }
    r.param = r.param - r.grad * rate;
  }
};

/// Options of SGD, at one step.
struct SGDStep {
  double scale = 1, lr = 0, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, first = false;  ///< first: the buffer, which is 0, becomes the whole gradient

  template <class T>
  [[nodiscard]] SGDRule<T> rule() const {
    return {T(scale), T(weight_decay), T(momentum), T(first ? 1 : 1 - dampening), T(lr), nesterov};
  }
};

/// Adagrad (Duchi, Hazan and Singer, JMLR 2011). State: the sum of squares.
template <class T>
struct AdagradRule {
  using Real = T;
  T scale, l2, eps, rate;

  [[gnu::always_inline]] inline int states() const { return 1; }

  template <int bytes>
  [[gnu::always_inline]] inline void apply(Registers<T, bytes>& r) const {
    r.grad = r.grad * scale;
    if (l2 != 0) r.grad = r.grad + r.param * l2;
    r.state[0] = r.state[0] + r.grad * r.grad;
    Lanes<T, bytes> spread = r.state[0];
    root<T, bytes>(spread);
    r.param = r.param - r.grad * rate / (spread + eps);
  }
};

/// Options of Adagrad, at one step.
struct AdagradStep {
  double scale = 1, lr = 0, lr_decay = 0, weight_decay = 0, eps = 0;
  int64_t step = 1;  ///< counted from 1

  template <class T>
  [[nodiscard]] AdagradRule<T> rule() const {
    return {T(scale), T(weight_decay), T(eps), T(lr / (1 + double(step - 1) * lr_decay))};
  }
};

}  // namespace dovetail::detail

#if defined(__clang__)
#pragma float_control(pop)
#else
#pragma GCC pop_options
#endif
