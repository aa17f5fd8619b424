// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/gather_into.hpp>
#include <dovetail/shard/flat_home.hpp>
#include <dovetail/shard/storage_gate.hpp>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dovetail {

/// Makes the tensors whole for good, of the dtype of the parts, each with memory of its own. A collective.
/// @param part  this rank's part of `layout`
inline void make_whole(const std::vector<torch::Tensor>& tensors, const FlatLayout& layout, const torch::Tensor& part,
                       Communicator& comm) {
  torch::NoGradGuard no_grad;
  const torch::Tensor whole = torch::empty({layout.size()}, part.options());
  comm.all_gather_into(whole, part);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    torch::Tensor tensor = tensors[i];
    const torch::Tensor data = torch::empty_strided(tensor.sizes(), tensor.strides(), part.options());
    data.copy_(view_like(whole, layout.offset(i), data));
    tensor.set_data(data);
  }
}

namespace detail {

/// Tensors that are cut over the ranks, whole for as long as this lives: they point into a buffer of the dtype of the
/// parts, which is gathered at the beginning and freed at the end.
class WholeTensors {
 public:
  /// @param part  this rank's part of `layout`
  WholeTensors(const std::vector<torch::Tensor>& tensors, const FlatLayout& layout, torch::Tensor part,
               Communicator& comm, bool on_every_rank)
      : part_(std::move(part)) {
    torch::NoGradGuard no_grad;
    const bool here = on_every_rank || comm.rank() == 0;
    torch::Tensor whole;
    if (here) whole = torch::empty({layout.size()}, part_.options());
    on_every_rank ? comm.all_gather_into(whole, part_) : gather_into(comm, whole, part_, 0);
    if (!here) return;
    own_ = whole.narrow(0, comm.rank() * layout.part_size(), layout.part_size());
    gate_ = StorageGate(whole, "a parameter is read after the scope of full_parameters has ended.");
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      torch::Tensor tensor = tensors[i];
      before_.emplace_back(tensor, tensor.variable_data());
      places_.push_back(alias_like(whole, layout.offset(i), tensor));
      tensor.set_data(places_.back());
    }
  }
  WholeTensors(const WholeTensors&) = delete;
  WholeTensors& operator=(const WholeTensors&) = delete;
  ~WholeTensors() {
    for (auto& [tensor, data] : before_) tensor.set_data(data);
    if (gate_.buffer().defined()) gate_.close();
  }

  /// What has become of this rank's part, also where a tensor was given other memory by `set_data`.
  void write_back() {
    torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < places_.size(); ++i)
      if (const torch::Tensor& tensor = before_[i].first; !tensor.is_alias_of(places_[i])) places_[i].copy_(tensor);
    if (own_.defined()) part_.copy_(own_);
  }

 private:
  torch::Tensor part_, own_;  // own_: this rank's part of the buffer
  StorageGate gate_;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> before_;  // tensors, and what they were
  std::vector<torch::Tensor> places_;                            // and are
};

/// The cut tensors of one unit, whole; shared by the scopes that lie in each other.
class WholeUnit {
 public:
  explicit WholeUnit(bool on_every_rank, std::function<void()> at_end = {})
      : on_every_rank_(on_every_rank), at_end_(std::move(at_end)) {}
  WholeUnit(const WholeUnit&) = delete;
  WholeUnit& operator=(const WholeUnit&) = delete;
  ~WholeUnit() { end(); }

  /// Tensors are again what they were, and what becomes of them is no business of the scopes that are still open: for
  /// when the model that they look at is about to be given back. Nothing is written back.
  void end() {
    segments_.clear();
    if (const auto at_end = std::exchange(at_end_, nullptr)) at_end();
  }

  bool on_every_rank() const { return on_every_rank_; }

  /// A collective.
  void add(const std::vector<torch::Tensor>& tensors, const FlatLayout& layout, const torch::Tensor& part,
           Communicator& comm) {
    segments_.emplace_back(tensors, layout, part, comm, on_every_rank_);
  }
  void write_back() {
    for (WholeTensors& segment : segments_) segment.write_back();
  }

 private:
  bool on_every_rank_;
  std::function<void()> at_end_;
  std::deque<WholeTensors> segments_;
};

/// The unit if some scope has it whole, else as `make` makes it.
/// @throws Error(user_code) where ranks need it that the outer scope has left out
template <class Make>
std::shared_ptr<WholeUnit> share_whole(std::weak_ptr<WholeUnit>& current, bool on_every_rank, Make&& make) {
  std::shared_ptr<WholeUnit> whole = current.lock();
  if (whole && on_every_rank && !whole->on_every_rank())
    throw Error(ExitCode::user_code,
                "full_parameters was opened inside of a scope with rank0_only: open the outer one on all ranks.");
  if (!whole) current = whole = make();
  return whole;
}

}  // namespace detail
}  // namespace dovetail
