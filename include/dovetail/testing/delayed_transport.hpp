// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/process_group.hpp>
#include <dovetail/testing/delayed_work.hpp>

#include <random>
#include <utility>

namespace dovetail::testing {

/// How collectives are held up.
struct Delays {
  std::chrono::microseconds before{};  ///< at most; slept before each collective starts, drawn anew for each
  std::chrono::microseconds wire{};    ///< each collective takes this long, one after the other
  std::uint64_t seed = 1;              ///< of the draws; take another one on each rank
};

namespace detail {

/// The real transport behind delays.
class DelayedBackend final : public c10d::Backend {
 public:
  using Inner = c10::intrusive_ptr<c10d::Backend>;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  DelayedBackend(Inner inner, Delays delays, std::shared_ptr<CommunicationLog> log)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        delays_(delays),
        random_(delays.seed),
        log_(std::move(log)) {}

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }

  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return delayed(Collective::all_reduce, tensors.front(), [&] { return inner_->allreduce(tensors, options); });
  }
  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return delayed(Collective::broadcast, tensors.front(), [&] { return inner_->broadcast(tensors, options); });
  }
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override {
    return delayed(Collective::all_gather, inputs.front(), [&] { return inner_->allgather(outputs, inputs, options); });
  }
  WorkPointer _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& options) override {
    return delayed(Collective::all_gather, out, [&] { return inner_->_allgather_base(out, in, options); });
  }
  WorkPointer _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                                   const c10d::ReduceScatterOptions& options) override {
    return delayed(Collective::reduce_scatter, in, [&] { return inner_->_reduce_scatter_base(out, in, options); });
  }
  WorkPointer alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_splits,
                            std::vector<std::int64_t>& in_splits, const c10d::AllToAllOptions& options) override {
    return delayed(Collective::all_to_all, in,
                   [&] { return inner_->alltoall_base(out, in, out_splits, in_splits, options); });
  }
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return delayed(Collective::gather, inputs.front(), [&] { return inner_->gather(outputs, inputs, options); });
  }
  WorkPointer barrier(const c10d::BarrierOptions& options) override { return inner_->barrier(options); }

 private:
  template <class Start>
  WorkPointer delayed(Collective collective, const at::Tensor& whole, Start&& start) {
    if (delays_.before.count() > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % std::uint64_t(delays_.before.count() + 1)));
    const auto number = log_->started(collective, static_cast<std::int64_t>(whole.nbytes()));
    free_at_ = std::max(free_at_, Clock::now()) + delays_.wire;
    auto work = start();  // none where a device's stream is ordered already
    if (!work) return work;
    return c10::make_intrusive<DelayedWork>(std::move(work), free_at_, number, log_);
  }

  Inner inner_;
  Delays delays_;
  std::mt19937_64 random_;
  std::shared_ptr<CommunicationLog> log_;
  Clock::time_point free_at_{};
};

}  // namespace detail

/// While it lives, runs that this process starts send over the real transport, Gloo say, with delays: what is right
/// must stay right to the bit whenever a collective is started and ended, and what overlaps can be seen from the order
/// of the log.
///
///     dt::testing::DelayedTransport slow({.wire = std::chrono::milliseconds(5)});
///     dt::Trainer<dt::FSDP, dt::FP32>(options).fit(task, data);
///     for (const auto& event : slow.log().events()) ...
class DelayedTransport {
 public:
  explicit DelayedTransport(Delays delays)
      : before_(std::exchange(dovetail::detail::transport_wrapper(), [delays, log = log_](auto transport) {
          return c10::make_intrusive<detail::DelayedBackend>(std::move(transport), delays, log);
        })) {}
  DelayedTransport(const DelayedTransport&) = delete;
  DelayedTransport& operator=(const DelayedTransport&) = delete;
  ~DelayedTransport() { dovetail::detail::transport_wrapper() = std::move(before_); }

  /// Of all that was sent through it. Tests note what the model does in it.
  [[nodiscard]] CommunicationLog& log() { return *log_; }

 private:
  std::shared_ptr<CommunicationLog> log_ = std::make_shared<CommunicationLog>();
  dovetail::detail::TransportWrapper before_;
};

}  // namespace dovetail::testing
