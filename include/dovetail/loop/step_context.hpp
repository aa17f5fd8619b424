// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/loop/metrics.hpp>

#include <torch/types.h>

namespace dovetail {

namespace detail {

/// The value of a one-element tensor. On the CPU it is read in place: this runs every step.
inline double read_scalar(const torch::Tensor& tensor) {
  if (tensor.numel() == 1 && tensor.device().is_cpu()) {
    if (tensor.scalar_type() == torch::kFloat32) return *tensor.const_data_ptr<float>();
    if (tensor.scalar_type() == torch::kFloat64) return *tensor.const_data_ptr<double>();
  }
  return tensor.item<double>();
}

}  // namespace detail

/// What a training or validation step may ask and say.
class StepContext {
 public:
  StepContext(MetricSums& sums, bool training) : sums_(sums), training_(training) {}
  StepContext(const StepContext&) = delete;  // what a step says to a copy would be lost

  bool training() const { return training_; }
  int64_t epoch() const { return epoch_; }  ///< from 0
  int64_t step() const { return step_; }    ///< optimizer steps taken so far

  /// Logs a value that is a mean over this batch; what is shown is the mean over all samples of all ranks.
  void log(std::string_view name, double value) {
    if (weight_ > 0)
      sums_.add(name, value, weight_);
    else
      sums_.add(name, 0, 0);  // a padding batch: the name is known on every rank, the value counts nothing
  }
  /// @throws Error(user_code) for anything but one real number
  void log(std::string_view name, const torch::Tensor& value) {
    if (!value.defined() || value.numel() != 1 || value.is_complex())
      throw Error(ExitCode::user_code,
                  "step.log was given for '" + std::string(name) + "' " +
                      (!value.defined()     ? "an undefined tensor"
                       : value.is_complex() ? "a complex number"
                                            : "a tensor of " + std::to_string(value.numel()) + " elements") +
                      ": log one real number, such as its mean.");
    log(name, detail::read_scalar(value));
  }

  /// How much this batch counts in the loss and in logged means; the number of its samples unless said otherwise. For a
  /// loss that is a mean over something else, tokens that are not padding say, call it before log.
  void weight(double n) {
    if (!padding_) weight_ = n;
  }
  double weight() const { return weight_; }

  /// The loop: a new batch of `samples`; 0 for a padding batch.
  void begin(int64_t epoch, int64_t step, int64_t samples) {
    epoch_ = epoch;
    step_ = step;
    weight_ = double(samples);
    padding_ = samples == 0;
  }

 private:
  MetricSums& sums_;
  bool training_, padding_ = false;
  int64_t epoch_ = 0, step_ = 0;
  double weight_ = 0;
};

}  // namespace dovetail
