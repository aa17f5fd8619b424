// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace dovetail::detail {

/// One rank of a world of any size without the others: a collective does at once what it would do if every rank had
/// given the same. What a run plans, sends and stores on that rank can so be recorded in one process; what it learns
/// means nothing.
class RecordingBackend final : public c10d::Backend {
 public:
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;

  RecordingBackend(int rank, int size) : Backend(rank, size) {}

  const std::string getBackendName() const override { return "recording"; }
  void setTimeout(std::chrono::milliseconds) override {}  // nobody is waited for

  WorkPointer allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    if (options.reduceOp == c10d::ReduceOp::SUM)
      for (at::Tensor& tensor : tensors) tensor.mul_(getSize());
    return done(tensors);
  }

  WorkPointer broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions&) override {
    return done(tensors);
  }

  WorkPointer allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                        const c10d::AllgatherOptions&) override {
    for (std::size_t i = 0; i < outputs.size(); ++i)
      for (at::Tensor& output : outputs[i]) output.copy_(inputs[i]);
    return done(outputs.empty() ? inputs : outputs.front());
  }

  WorkPointer _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions&) override {
    const at::Tensor rows = out.view({getSize(), in.numel()});
    const at::Tensor own = rows[getRank()];
    if (own.data_ptr() != in.data_ptr()) own.copy_(in);
    for (int rank = 0; rank < getSize(); ++rank)
      if (rank != getRank()) rows[rank].copy_(own);
    return done({out});
  }

  WorkPointer _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions&) override {
    out.copy_(in.narrow(0, getRank() * out.numel(), out.numel())).mul_(getSize());
    return done({out});
  }

  WorkPointer gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                     const c10d::GatherOptions&) override {
    for (auto& of_ranks : outputs)
      for (at::Tensor& output : of_ranks) output.copy_(inputs.front());
    return done(inputs);
  }

  WorkPointer alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>&, std::vector<int64_t>&,
                            const c10d::AllToAllOptions&) override {
    const int64_t part = in.numel() / getSize();
    out.view({getSize(), part}).copy_(in.narrow(0, getRank() * part, part).expand({getSize(), part}));
    return done({out});
  }

  WorkPointer barrier(const c10d::BarrierOptions&) override { return done({}); }

 private:
  static WorkPointer done(const std::vector<at::Tensor>& tensors) {
    const auto type = c10::ListType::create(c10::TensorType::get());
    std::vector<c10::Device> devices;
    if (!tensors.empty() && !tensors.front().is_cpu()) devices.push_back(tensors.front().device());
    const auto future = c10::make_intrusive<c10::ivalue::Future>(type, std::move(devices));
    future->markCompleted(c10::IValue(tensors));
    return c10d::Work::create_from_future(future);
  }
};

}  // namespace dovetail::detail
