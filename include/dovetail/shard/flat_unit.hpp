// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/communicator.hpp>
#include <dovetail/shard/flat_home.hpp>
#include <dovetail/shard/gradient_buffer.hpp>
#include <dovetail/shard/storage_gate.hpp>
#include <dovetail/shard/whole_unit.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dovetail {

/// Where whole parameters and whole gradients of all units of a model take their memory from.
struct UnitMemory {
  std::shared_ptr<MemoryPool> gathered = std::make_shared<MemoryPool>();
  std::shared_ptr<MemoryPool> gradients = std::make_shared<MemoryPool>();
};

/// Parameters of one unit that are stored in one dtype and gathered in one: one flat buffer, one collective.
///
/// The module's tensors are views of `full`, and their gradients are collected in one buffer; both exist only while the
/// unit needs them. What stays is this rank's part: `shard`, the parameters in their stored dtype, and `main`, the sum
/// of their gradients over ranks and micro-batches. Parts are padded with zeros to the same size on every rank. Between
/// forward and backward a slice of `full` may stay on the rank: more than its part, so that few ranks have all of it.
class FlatSegment {
 public:
  /// @param tensors the module's own, dense, in the order in which they are to lie
  /// @param gathered dtype of the module's tensors from now on
  /// @param reduced dtype in which gradients are sent
  /// @param shard, main this rank's part, of layout.part_size() elements, zero
  /// @param filled does the shard hold its elements already, so that the tensors need not?
  FlatSegment(std::vector<torch::Tensor> tensors, FlatLayout layout, int rank, torch::ScalarType gathered,
              torch::ScalarType reduced, torch::Tensor shard, torch::Tensor main, const std::string& whose,
              const UnitMemory& memory = {}, bool filled = false)
      : tensors_(std::move(tensors)),
        layout_(std::move(layout)),
        whose_(whose),
        shard_(std::move(shard)),
        main_(std::move(main)),
        gathered_memory_(memory.gathered) {
    torch::NoGradGuard no_grad;
    const torch::Tensor full = torch::empty({layout_.size()}, shard_.options().dtype(gathered));
    const torch::Tensor gradient = torch::empty({layout_.size()}, main_.options());
    full_part_ = full.narrow(0, rank * layout_.part_size(), layout_.part_size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      torch::Tensor& tensor = tensors_[i];
      const Piece piece = layout_.piece(i, rank);
      const torch::Tensor data = tensor.variable_data();
      if (!filled)
        shard_.narrow(0, piece.offset, piece.numel).copy_(in_storage_order(data).narrow(0, piece.begin, piece.numel));
      tensor.mutable_grad().reset();
      tensor.set_data(alias_like(full, layout_.offset(i), data));
    }
    full_ =
        StorageGate(full,
                    whose +
                        " are read while FSDP has freed them. They exist only while their unit runs: "
                        "call it through its holder, forward() or call(), or read them in a scope of full_parameters.",
                    memory.gathered);
    StorageGate gate(gradient, "gradients of " + whose + " are read after FSDP has sent them to their owners.",
                     memory.gradients);
    gradients_ = std::make_shared<GradientBuffer>(tensors_, layout_, std::move(gate), whose,
                                                  GradientWire(gradient, reduced, memory.gradients));
    full_.close();
    gradients_->close();
  }

  const std::vector<torch::Tensor>& tensors() const { return tensors_; }  ///< the module's
  const FlatLayout& layout() const { return layout_; }
  const torch::Tensor& shard() const { return shard_; }
  const torch::Tensor& main() const { return main_; }
  /// Does some tensor require a gradient now?
  bool trains() const {
    return std::any_of(tensors_.begin(), tensors_.end(), [](const torch::Tensor& t) { return t.requires_grad(); });
  }
  std::size_t full_bytes() const { return full_.is_open() ? full_.bytes() : 0; }
  std::size_t slice_bytes() const { return has_slice() ? slice_.bytes() : 0; }
  std::size_t gradient_bytes() const { return gradients_->bytes(); }

  /// Takes the gradients of the module's tensors, in their order.
  const std::shared_ptr<GradientBuffer>& gradients() const { return gradients_; }

  /// Starts to gather the ranks' parts, each cast first where units are gathered in another dtype; or, where slices
  /// stayed, those of the reshard group.
  Pending gather(Communicator& comm, Communicator& reshard_group) {
    torch::NoGradGuard no_grad;
    full_.open();
    if (has_slice()) {
      const torch::Tensor place = slice_place(reshard_group);
      place.copy_(slice_.buffer());
      slice_.close();
      return reshard_group.all_gather_into_async(full_.buffer(), place);
    }
    if (full_part_.scalar_type() == shard_.scalar_type()) return comm.all_gather_into_async(full_.buffer(), shard_);
    full_part_.copy_(shard_);
    return comm.all_gather_into_async(full_.buffer(), full_part_);
  }
  void release() {
    full_.close();
    if (has_slice()) slice_.close();
  }

  /// Leaves this rank's slice among those of its reshard group and frees the whole, unless that stays. The next gather
  /// is one of slices all the same, as it is on the other ranks.
  void slice(const Communicator& reshard_group, bool whole_stays) {
    torch::NoGradGuard no_grad;
    const torch::Tensor place = slice_place(reshard_group);
    if (!slice_.buffer().defined()) {
      slice_ = StorageGate(torch::empty_like(place), "a slice is read after it was freed.", gathered_memory_);
      slice_.close();
    }
    slice_.open();
    slice_.buffer().copy_(place);
    if (!whole_stays) full_.close();
  }

  /// Starts to sum the gradients over ranks into `main`, or to add the sum to it. They must stay open meanwhile.
  Pending reduce(Communicator& comm, bool adds) {
    torch::NoGradGuard no_grad;
    return comm.reduce_scatter_async(main_, gradients_->finish(true), adds);
  }
  void close_gradient() { gradients_->close(); }
  void forget_gradient() {
    gradients_->close();
    gradients_->forget();
  }

  /// Makes the module's tensors what they were: whole, in the stored dtype, each with memory of its own, without
  /// gradient.
  void restore(Communicator& comm) {
    for (torch::Tensor& tensor : tensors_) tensor.mutable_grad().reset();
    make_whole(tensors_, layout_, shard_, comm);
  }

  /// The model stays cut: whoever reads it from now on is told why.
  void abandon() {
    full_.forbid(whose_ +
                 " are cut over the ranks, because fit ended by an exception before it made the model whole "
                 "again: build the model anew.");
  }

 private:
  bool has_slice() const { return slice_.buffer().defined() && slice_.is_open(); }
  torch::Tensor slice_place(const Communicator& reshard_group) const {
    const int64_t size = layout_.size() / reshard_group.size();
    return full_.buffer().narrow(0, reshard_group.rank() * size, size);
  }

  std::vector<torch::Tensor> tensors_;
  FlatLayout layout_;
  std::string whose_;
  torch::Tensor shard_, main_;
  StorageGate full_, slice_;
  std::shared_ptr<GradientBuffer> gradients_;  // shared with hooks
  std::shared_ptr<MemoryPool> gathered_memory_;
  torch::Tensor full_part_;  // this rank's place in full
};

/// The storage of one unit: a segment for each pair of dtypes that its parameters have.
class FlatUnit {
 public:
  FlatUnit() = default;
  explicit FlatUnit(std::string name) : name_(std::move(name)) {}

  /// The path of the module; empty for the root unit.
  const std::string& name() const { return name_; }
  std::vector<FlatSegment>& segments() { return segments_; }
  const std::vector<FlatSegment>& segments() const { return segments_; }

  bool trains() const {
    return std::any_of(segments_.begin(), segments_.end(), [](const FlatSegment& s) { return s.trains(); });
  }

  void start_gather(Communicator& comm, Communicator& reshard_group) {
    for (FlatSegment& segment : segments_) gathering_.push_back(segment.gather(comm, reshard_group));
  }
  void finish_gather() { finish(gathering_); }
  void release() {
    for (FlatSegment& segment : segments_) segment.release();
  }
  void slice(const Communicator& reshard_group, bool whole_stays) {
    for (FlatSegment& segment : segments_) segment.slice(reshard_group, whole_stays);
  }
  void forget_gradients() {
    for (FlatSegment& segment : segments_) segment.forget_gradient();
  }
  void start_reduce(Communicator& comm, bool adds) {
    for (FlatSegment& segment : segments_) reducing_.push_back(segment.reduce(comm, adds));
    has_main_ = true;
  }
  void finish_reduce() {
    finish(reducing_);
    for (FlatSegment& segment : segments_) segment.close_gradient();
  }
  void restore(Communicator& comm) {
    for (FlatSegment& segment : segments_) segment.restore(comm);
  }

  void abandon() {
    for (Pending& pending : gathering_) {  // c10d's threads read the memory until then
      try {
        pending.wait();
      } catch (const Error&) {  // another rank is gone: that is why the run has ended
      }
    }
    for (FlatSegment& segment : segments_) segment.abandon();
  }

  /// The unit takes no part in this window: what is left of an earlier one must not be stepped with.
  void forget_main() {
    if (!std::exchange(has_main_, false)) return;
    torch::NoGradGuard no_grad;
    for (FlatSegment& segment : segments_) torch::Tensor(segment.main()).zero_();
  }

 private:
  static void finish(std::vector<Pending>& all) {
    for (Pending& pending : all) pending.wait();
    all.clear();
  }

  std::string name_;
  std::vector<FlatSegment> segments_;
  std::vector<Pending> gathering_, reducing_;
  bool has_main_ = false;
};

}  // namespace dovetail
