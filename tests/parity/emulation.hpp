// SPDX-License-Identifier: Apache-2.0
// All ranks of a run in one process, one after the other: their slices, their formats, their sums, in rank order.
#pragma once

#include "parity/oracle.hpp"

namespace parity {

/// Autocast to `dtype` for one forward; the cache of cast weights is emptied afterwards.
class Autocast {
 public:
  explicit Autocast(const Formats& formats) : on_(formats.autocasts) {
    if (!on_) return;
    at::autocast::set_autocast_dtype(at::kCPU, formats.rounds_to);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    if (!on_) return;
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }

 private:
  bool on_;
};

class Emulation {
 public:
  /// @param sums_micro_batches  gradients are summed over the ranks for each micro-batch and then over those, as
  /// strategies
  ///                            do that cut gradients; else over micro-batches first
  Emulation(const Setting& setting, const Formats& formats, int ranks, bool sums_micro_batches, Shuffle shuffled)
      : setting_(setting),
        formats_(formats),
        ranks_(ranks),
        sums_micro_batches_(sums_micro_batches),
        shuffled_(shuffled),
        scale_(formats.scale == 0  ? 0
               : setting.scale > 0 ? setting.scale
                                   : formats.scale) {
    torch::manual_seed(Setting::seed);
    net_ = make_net<std::type_identity_t>(setting.model);
    for (Tensor& parameter : net_->parameters())
      if (parameter.requires_grad()) trained_.push_back(parameter);
    for (const Tensor& parameter : trained_) masters_.push_back(parameter.detach().clone());
    if (formats_.casts_model) cast(*net_);
    for (std::size_t i = 0; i < trained_.size(); ++i)
      if (!formats_.has_masters || trained_[i].scalar_type() == torch::kFloat32) masters_[i] = trained_[i].detach();
    buffers_.resize(std::size_t(ranks_));
    for (auto& own : buffers_)
      for (const Tensor& buffer : net_->buffers()) own.push_back(buffer.clone());
    state_.resize(trained_.size());
  }

  Outcome train() {
    const int64_t samples = setting_.samples(ranks_);
    const auto [x, y] = make_data(setting_.model, samples);
    for (int64_t epoch = 0; epoch < Setting::epochs; ++epoch) {
      const Tensor order = row_order(setting_, samples, epoch, shuffled_);
      for (int64_t first = 0; first < setting_.batches; first += setting_.accumulate) {
        window(x.index_select(0, order), y.index_select(0, order), first,
               std::min(setting_.batches, first + setting_.accumulate));
      }
    }
    average_buffers();
    keep_tensors(*net_, outcome_);
    return outcome_;
  }

 private:
  using Gradients = std::vector<Tensor>;

  void cast(torch::nn::Module& model) const {
    torch::NoGradGuard no_grad;
    for (const auto& module : model.modules()) {
      if (formats_.spares_batch_norm && module->as<torch::nn::BatchNorm1d>()) continue;
      for (Tensor& parameter : module->parameters(false)) parameter.set_data(parameter.detach().to(formats_.rounds_to));
      for (Tensor& buffer : module->buffers(false))
        if (buffer.is_floating_point()) buffer.set_data(buffer.to(formats_.rounds_to));
    }
  }

  torch::ScalarType wide() const { return formats_.rounds_to == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32; }

  static void add(Gradients& sum, const Gradients& more) {
    if (sum.empty()) {
      for (const Tensor& one : more) sum.push_back(one.clone());
      return;
    }
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i].add_(more[i]);
  }

  /// One rank's part of one micro-batch: its gradients, scaled and weighted as all of them, in the wide format.
  Gradients forward_backward(int rank, Tensor x, const Tensor& y, double& loss_sum) {
    if (x.is_floating_point() && formats_.casts_model) x = x.to(formats_.rounds_to);
    exchange_buffers(rank);
    Tensor loss;
    {
      const Autocast autocast(formats_);
      loss = net_->loss(x, y);
    }
    const auto n = double(x.size(0));
    loss_sum += loss.item<double>() * n;
    const double factor = n / double(Setting::batch_size) * (scale_ > 0 ? scale_ : 1.0);
    if (factor != 1) loss = loss * factor;
    Gradients gradients;
    for (const Tensor& gradient : torch::autograd::grad({loss}, trained_)) gradients.push_back(gradient.to(wide()));
    exchange_buffers(rank);
    return gradients;
  }

  void window(const Tensor& x, const Tensor& y, int64_t first, int64_t last) {
    const int64_t width = ranks_ * Setting::batch_size;
    std::vector<Gradients> of_rank(static_cast<std::size_t>(ranks_));
    std::vector<double> losses(std::size_t(ranks_), 0.0);
    Gradients total;
    int64_t count = 0;
    for (int64_t b = first; b < last; ++b) {
      Gradients of_batch;
      for (int rank = 0; rank < ranks_; ++rank) {
        const int64_t begin = std::min(x.size(0), b * width + rank * Setting::batch_size);
        const int64_t end = std::min(x.size(0), begin + Setting::batch_size);
        if (begin == end) continue;
        count += end - begin;
        const auto gradients =
            forward_backward(rank, x.slice(0, begin, end), y.slice(0, begin, end), losses[std::size_t(rank)]);
        add(sums_micro_batches_ ? of_batch : of_rank[std::size_t(rank)], gradients);
      }
      if (sums_micro_batches_) add(total, of_batch);
    }
    for (const Gradients& gradients : of_rank)
      if (!gradients.empty()) add(total, gradients);
    outcome_.loss = std::accumulate(losses.begin(), losses.end(), 0.0) / double(count);
    step(total, double(count) / double(Setting::batch_size), std::isinf(outcome_.loss));
  }

  void step(Gradients& total, double weight, bool infinite_loss) {
    torch::NoGradGuard no_grad;
    double divisor = weight * (scale_ > 0 ? scale_ : 1.0), squared = 0;
    for (const Tensor& gradient : total) squared += gradient.to(torch::kFloat64).square().sum().item<double>();
    if (scale_ > 0 && (infinite_loss || !std::isfinite(squared))) {
      if (setting_.scale == 0) scale_ *= 0.5;
      return;
    }
    const auto& clip = setting_.clip;
    if (clip && clip->kind == dovetail::ClipOptions::Kind::norm)
      divisor /= std::min(1.0, clip->limit / (std::sqrt(squared) / divisor + 1e-6));
    if (clip && clip->kind == dovetail::ClipOptions::Kind::value) {
      for (Tensor& gradient : total) gradient = (gradient / divisor).clamp(-clip->limit, clip->limit);
      divisor = 1;
    }
    ++outcome_.steps;
    for (std::size_t i = 0; i < total.size(); ++i) {
      // A gradient that the optimizer wants in a low format is divided before it is rounded; else the kernel divides.
      const bool rounded = masters_[i].scalar_type() != total[i].scalar_type();
      if (rounded) total[i] = (total[i] / divisor).to(masters_[i].scalar_type());
      step_one(i, total[i], rounded ? 1.0 : divisor);
      if (formats_.has_masters) trained_[i].detach().copy_(masters_[i]);
    }
  }

  /// The formulas of the papers, an operation on tensors at a time: in fp32, for fp64 weights in fp64; what is stored
  /// is rounded to the weights' format.
  void step_one(std::size_t i, const Tensor& gradient, double divisor) {
    Tensor& weight = masters_[i];
    const auto format = weight.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
    const Tensor w = weight.to(format);
    Tensor g = gradient.to(format) * (1 / divisor);
    auto& state = state_[i];
    const bool fresh = state.empty();
    if (fresh) state = {torch::zeros_like(weight), torch::zeros_like(weight)};
    if (setting_.optimizer == OptimizerKind::adam) {
      const Tensor first = state[0].to(format) * 0.9 + g * 0.1, second = state[1].to(format) * 0.999 + g * g * 0.001;
      const double taken = double(outcome_.steps), bias1 = 1 - std::pow(0.9, taken), bias2 = 1 - std::pow(0.999, taken);
      state[0].copy_(first);
      state[1].copy_(second);
      weight.copy_(w - first / bias1 * adam_rate / ((second / bias2).sqrt() + adam_eps));
      return;
    }
    g = g + w * weight_decay;
    if (setting_.optimizer == OptimizerKind::momentum) {
      if (!fresh) g = state[0].to(format) * momentum + g;
      state[0].copy_(g);
    }
    weight.copy_(w - g * learning_rate);
  }

  /// Between forwards the model has rank 0's; each rank's forward sees and changes its own.
  void exchange_buffers(int rank) {
    torch::NoGradGuard no_grad;
    auto held = net_->buffers();
    for (std::size_t i = 0; i < held.size(); ++i) {
      const Tensor before = held[i].clone();
      held[i].copy_(buffers_[std::size_t(rank)][i]);
      buffers_[std::size_t(rank)][i].copy_(before);
    }
  }

  void average_buffers() {
    torch::NoGradGuard no_grad;
    auto held = net_->buffers();
    for (std::size_t i = 0; i < held.size(); ++i) {
      Tensor sum = buffers_[0][i].clone();
      if (sum.is_floating_point() && ranks_ > 1) {
        sum = sum.to(torch::kFloat64);
        for (int rank = 1; rank < ranks_; ++rank) sum.add_(buffers_[std::size_t(rank)][i].to(torch::kFloat64));
        sum.div_(ranks_);
      }
      held[i].copy_(sum);
    }
  }

  Setting setting_;
  Formats formats_;
  int ranks_;
  bool sums_micro_batches_;
  Shuffle shuffled_;
  double scale_;
  std::shared_ptr<Net> net_;
  Gradients trained_, masters_;               // without masters the same memory
  std::vector<std::vector<Tensor>> buffers_;  // of each rank
  std::vector<std::vector<Tensor>> state_;    // of the optimizer, for each parameter
  Outcome outcome_;
};

}  // namespace parity
