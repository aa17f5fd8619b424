// SPDX-License-Identifier: Apache-2.0
// What one run is, apart from the pair of policies that does it: model, optimizer, data, accumulation, clipping.
#pragma once

#include <dovetail/optim/clip.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace parity {

enum class ModelKind { mlp, odd, frozen, tied, wide, batch_norm, dropout };
enum class OptimizerKind {
  sgd,       // with weight decay only: an element's update does not depend on where it lies
  momentum,  // SGD with momentum
  adam,      // eps 1e-3
};

/// How many samples the last micro-batch of an epoch has, of all ranks together.
enum class Tail {
  none,     // all batches are equal
  shorter,  // the last rank has one sample less
  by_two,   // the last rank has two samples less
  padding,  // the last rank has none, the one before it one less
};

constexpr const char* name_of(ModelKind kind) {
  switch (kind) {
    case ModelKind::mlp:
      return "mlp";
    case ModelKind::odd:
      return "odd sizes";
    case ModelKind::frozen:
      return "frozen layer";
    case ModelKind::tied:
      return "tied table";
    case ModelKind::wide:
      return "wide";
    case ModelKind::batch_norm:
      return "batch norm";
    case ModelKind::dropout:
      break;
  }
  return "dropout";
}
constexpr const char* name_of(OptimizerKind kind) {
  return kind == OptimizerKind::sgd ? "SGD" : kind == OptimizerKind::momentum ? "SGD+momentum" : "Adam";
}
constexpr const char* name_of(Tail tail) {
  switch (tail) {
    case Tail::none:
      return "equal batches";
    case Tail::shorter:
      return "short tail";
    case Tail::by_two:
      return "tail short by two";
    case Tail::padding:
      break;
  }
  return "tail with a rank without samples";
}

struct Setting {
  static constexpr int64_t batch_size = 4;  // per rank
  static constexpr int64_t epochs = 2;
  static constexpr uint64_t seed = 11;

  ModelKind model = ModelKind::mlp;
  OptimizerKind optimizer = OptimizerKind::sgd;
  int64_t accumulate = 1;
  int64_t batches = 5;  // micro-batches per epoch; with 2 epochs and `accumulate` they make 6 to 10 steps
  Tail tail = Tail::none;
  bool shuffle = false;
  std::optional<dovetail::ClipOptions> clip{};
  bool deterministic = false;
  double scale = 0;  // of the loss, fixed; 0: the precision's own scaler, if it has one

  /// Samples in the data set.
  [[nodiscard]] int64_t samples(int ranks) const {
    const int64_t whole = (batches - 1) * ranks * batch_size, last = ranks * batch_size;
    switch (tail) {
      case Tail::none:
        return whole + last;
      case Tail::shorter:
        return whole + last - 1;
      case Tail::by_two:
        return whole + last - 2;
      case Tail::padding:
        break;
    }
    return whole + (ranks > 1 ? last - batch_size - 1 : last - 1);
  }

  [[nodiscard]] std::string text() const {
    std::string words = std::string(name_of(model)) + ", " + name_of(optimizer) + ", accumulate " +
                        std::to_string(accumulate) + ", " + std::to_string(batches) + " batches, " + name_of(tail);
    if (shuffle) words += ", shuffled";
    if (clip) words += clip->kind == dovetail::ClipOptions::Kind::norm ? ", clip by norm" : ", clip by value";
    if (deterministic) words += ", deterministic";
    if (scale > 0) words += ", loss scale " + std::to_string(int64_t(scale));
    return words;
  }
};

}  // namespace parity
