// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <dovetail/comm/counts.hpp>

namespace dovetail::detail {

/// Stands between a c10d::ProcessGroup and its backend, so that what c10d::Reducer sends is counted like what the
/// Communicator sends. It has the collectives that the Reducer and its helpers call, and no others.
class CountingBackend final : public c10d::Backend {
 public:
  CountingBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<CommunicationCounts> counts)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), counts_(std::move(counts)) {}

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    count(Collective::all_reduce, tensors, 1);
    return inner_->allreduce(tensors, options);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    count(Collective::broadcast, tensors, 1);
    return inner_->broadcast(tensors, options);
  }

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override {
    count(Collective::all_gather, inputs, getSize());
    return inner_->allgather(outputs, inputs, options);
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    counts_->add(Collective::barrier, 0);
    return inner_->barrier(options);
  }

 private:
  void count(Collective collective, const std::vector<at::Tensor>& tensors, int64_t times) {
    int64_t bytes = 0;
    for (const auto& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
    counts_->add(collective, bytes_sent(collective, times * bytes, getSize()));
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  std::shared_ptr<CommunicationCounts> counts_;
};

}  // namespace dovetail::detail
