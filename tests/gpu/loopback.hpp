// SPDX-License-Identifier: Apache-2.0
// A world of several ranks of which only one is there, over NCCL: what is moved goes through NCCL's kernels.
#pragma once

#include <dovetail/comm/process_group.hpp>
#include <dovetail/testing/recorded_rank.hpp>

namespace gpu {

/// Tensors on the CPU are left to the recording transport. On a GPU a collective over the world is some of NCCL over
/// one rank, with the same result as if every rank had given the same.
class Loopback final : public c10d::Backend {
 public:
  using Inner = c10::intrusive_ptr<c10d::Backend>;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;

  Loopback(Inner recording, Inner nccl)
      : Backend(recording->getRank(), recording->getSize()), recording_(std::move(recording)), nccl_(std::move(nccl)) {}

  const std::string getBackendName() const override { return "loopback"; }

  WorkPointer allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    if (!tensors.front().is_cpu()) finish(nccl_->allreduce(tensors, options));
    return recording_->allreduce(tensors, options);
  }
  WorkPointer broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    if (!tensors.front().is_cpu()) {
      auto from_this_rank = options;
      from_this_rank.rootRank = 0;
      finish(nccl_->broadcast(tensors, from_this_rank));
    }
    return recording_->broadcast(tensors, options);
  }
  WorkPointer allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                        const c10d::AllgatherOptions& options) override {
    return recording_->allgather(outputs, inputs, options);
  }
  WorkPointer _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& options) override {
    if (in.is_cpu()) return recording_->_allgather_base(out, in, options);
    for (int rank = 0; rank < getSize(); ++rank) {
      at::Tensor part = out.narrow(0, rank * in.numel(), in.numel());
      if (part.const_data_ptr() != in.const_data_ptr()) finish(nccl_->_allgather_base(part, in, options));
    }
    return nullptr;
  }
  WorkPointer _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                                   const c10d::ReduceScatterOptions& options) override {
    at::Tensor part = in.narrow(0, getRank() * out.numel(), out.numel());
    finish(nccl_->_reduce_scatter_base(out, part, options));
    out.mul_(getSize());
    return nullptr;
  }
  WorkPointer alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_splits,
                            std::vector<int64_t>& in_splits, const c10d::AllToAllOptions& options) override {
    if (in.is_cpu()) return recording_->alltoall_base(out, in, out_splits, in_splits, options);
    const int64_t size = in.numel() / getSize();
    at::Tensor part = in.narrow(0, getRank() * size, size);
    for (int rank = 0; rank < getSize(); ++rank) {
      at::Tensor to = out.narrow(0, rank * size, size);
      finish(nccl_->alltoall_base(to, part, out_splits, in_splits, options));
    }
    return nullptr;
  }
  WorkPointer barrier(const c10d::BarrierOptions& options) override { return recording_->barrier(options); }

 private:
  static void finish(const WorkPointer& work) {
    if (work) work->wait();
  }

  Inner recording_, nccl_;
};

/// While it lives this process is rank 0 of `ranks`, and alone.
class World {
 public:
  World(int ranks, c10::intrusive_ptr<c10d::Backend> nccl) : rank_(0, ranks) {
    dovetail::detail::transport_wrapper() = [nccl](auto recording) {
      return c10::make_intrusive<Loopback>(std::move(recording), nccl);
    };
  }
  ~World() { dovetail::detail::transport_wrapper() = nullptr; }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

 private:
  dovetail::testing::RecordedRank rank_;
};

}  // namespace gpu
