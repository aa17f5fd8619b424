// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <dovetail/comm/c10d_names.hpp>
#include <dovetail/comm/pending.hpp>

namespace dovetail {

/// The collectives of one set of ranks: a value, whose copies share connections, counts and temporaries.
///
/// All ranks must call the same functions in the same order with tensors of the same sizes. Tensors are dense, of any
/// strides that are the same on all ranks; nothing is recorded for autograd. Calls come from one thread at a time. With
/// one rank there is no process group: every function is the identity, and nothing is counted.
///
/// Tensors on the CPU travel over Gloo, and the host waits for them. Those on the device that the ranks are connected
/// for travel over NCCL, on a stream of the Communicator's own that comes after what the calling thread's current
/// stream was given; then that stream waits for the result, and the host goes on.
///
/// Every function throws Error(peer_lost) when another rank is gone, Error(collective_timeout) when one did not come in
/// time, and Error(user_code) for tensors that do not fit; after the first two the Communicator is of no use any more.
class Communicator {
 public:
  /// One rank.
  Communicator() = default;

  /// Connects the ranks and returns when all are there.
  /// @param device  where tensors may be besides the CPU; the same kind of device on all ranks
  /// @throws Error(collective_timeout, peer_lost, ranks_disagree, arguments)
  [[nodiscard]] static Communicator connect(const Ranks& ranks, const Timeouts& timeouts = {},
                                            torch::Device device = torch::kCPU) {
    Communicator made;
    auto& state = *made.state_;
    state.rank = ranks.rank;
    state.size = ranks.world_size;
    state.timeouts = timeouts;
    state.timeout = timeouts.step;
    state.device = device;
    if (ranks.world_size > 1) state.attach(detail::connect_ranks(ranks, timeouts, state.counts, device));
    return made;
  }

  [[nodiscard]] int rank() const { return state_->rank; }
  [[nodiscard]] int size() const { return state_->size; }

  /// Calls and bytes sent by this rank so far, those of `process_group()` included.
  [[nodiscard]] const CommunicationCounts& counts() const { return *state_->counts; }

  /// The same ranks as c10d's ProcessGroup, for c10d::Reducer; null with one rank.
  [[nodiscard]] const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const {
    return state_->group.process_group;
  }

  [[nodiscard]] const Timeouts& timeouts() const { return state_->timeouts; }

  /// How long the collectives from now on wait for the other ranks; `timeouts().step` at first. Groups of these ranks
  /// follow.
  void set_timeout(std::chrono::milliseconds timeout) { state_->set_timeout(timeout); }

  /// Reduce-scatter on a GPU is NCCL's own, whose sums are in an order that depends on sizes and wires. With `yes` it
  /// is what it always is on the CPU: an all-to-all and a sum in rank order. Groups of these ranks follow.
  void set_deterministic(bool yes) { state_->set_deterministic(yes); }

  /// Sum over the ranks, in place, in the tensor's own dtype. The order of the sum depends on size and number of ranks,
  /// and half formats are rounded at every hop; all ranks get the same bits.
  void all_reduce(const torch::Tensor& tensor) {
    if (!begin(tensor, "all_reduce")) return;
    count(Collective::all_reduce, tensor);
    std::vector<torch::Tensor> flat{detail::flat_view(tensor)};
    const auto options = detail::options_for<c10d::AllreduceOptions>(tensor);
    run(tensor, [&] { finish(Collective::all_reduce, [&] { return backend(tensor).allreduce(flat, options); }); });
  }

  /// all_reduce, divided by the number of ranks. Floating point only.
  void all_reduce_mean(torch::Tensor tensor) {
    if (size() == 1) return;
    if (!tensor.is_floating_point()) throw Error(ExitCode::user_code, "all_reduce_mean of integers would be cut.");
    all_reduce(tensor);
    const torch::NoGradGuard no_grad;
    tensor.div_(size());
  }

  /// Sum over the ranks in rank order, in place: every element is ((r0 + r1) + r2) + ..., whatever tensor it is in.
  /// Half formats are summed in fp32 and rounded once. Sends what all_reduce sends; needs a temporary of that size.
  void all_reduce_deterministic(const torch::Tensor& tensor);

  /// Concatenates the ranks' `in` in rank order into `out`, which is `size()` times as large. Any dtype, no rounding;
  /// `in` may be this rank's part of `out`.
  void all_gather_into(const torch::Tensor& out, const torch::Tensor& in) { all_gather_into_async(out, in).wait(); }
  [[nodiscard]] Pending all_gather_into_async(const torch::Tensor& out, const torch::Tensor& in);

  /// out = sum over ranks, in rank order, of the part of `in` that is this rank's; `in` is `size()` times as large.
  /// Half formats are summed in fp32; `out` has the dtype of `in` or, for half formats, fp32. `out` may be part of
  /// `in`. An all-to-all and a sum: half the bytes of Gloo's own reduce-scatter, and the same bits on every run. On a
  /// GPU NCCL's own, for formats in which it sums without loss, unless set_deterministic says otherwise. With `adds`
  /// the sum is added to what `out` holds.
  void reduce_scatter(const torch::Tensor& out, const torch::Tensor& in) { reduce_scatter_async(out, in).wait(); }
  [[nodiscard]] Pending reduce_scatter_async(const torch::Tensor& out, const torch::Tensor& in, bool adds = false);

  /// Copies rank `root`'s content to all ranks. Any dtype.
  void broadcast(const torch::Tensor& tensor, int root);

  /// Sends the r-th of `size()` equal parts of `in` to rank r; part r of `out` comes from rank r. Any dtype.
  void all_to_all(const torch::Tensor& out, const torch::Tensor& in);

  /// Returns when all ranks have called it.
  void barrier() {
    if (size() == 1) return;
    state_->counts->add(Collective::barrier, 0);
    finish(Collective::barrier, [&] { return state_->group.backend->barrier(); });
  }

  /// A few numbers of every rank, in rank order: k numbers here, `size() * k` in the result, which stays valid until
  /// the next call of this function. While k stays the same the tensors for it are reused.
  [[nodiscard]] std::span<const double> all_gather(std::span<const double> mine);

 private:
  friend void gather_into(Communicator&, const torch::Tensor&, const torch::Tensor&, int);
  friend struct detail::RankGroups;

  [[nodiscard]] c10d::Backend& backend(const torch::Tensor& tensor) const {
    return tensor.is_cpu() ? *state_->group.backend : *state_->group.device_backend;
  }

  /// Temporaries for a collective on this tensor, to be taken and given back inside of `run`.
  [[nodiscard]] detail::Scratch& scratch(const torch::Tensor& tensor) const {
    return tensor.is_cpu() ? state_->scratch : *state_->on_side;
  }

  void count(Collective collective, const torch::Tensor& whole) {
    state_->counts->add(collective, bytes_sent(collective, static_cast<int64_t>(whole.nbytes()), size()));
  }

  /// Checks; false when there is nothing to do.
  [[nodiscard]] bool begin(const torch::Tensor& tensor, const char* collective) const {
    detail::check_memory(tensor, state_->device, collective);
    return size() > 1 && tensor.numel() > 0;
  }
  [[nodiscard]] bool begin(const torch::Tensor& large, const torch::Tensor& small, const char* collective) const {
    detail::check_pair(large, small, size(), state_->device, collective);
    return size() > 1 && large.numel() > 0;
  }

  /// Runs the whole of a collective on this tensor: here, or on the device's stream for collectives.
  template <class Body>
  void run(const torch::Tensor& tensor, Body&& body) {
    tensor.is_cpu() ? body() : state_->side->run(body)->wait();
  }

  /// Starts what c10d does and waits for it: the host on the CPU, the current stream on a device. There c10d gives back
  /// nothing where it has ordered the stream already.
  template <class F>
  void finish(Collective collective, F&& start) {
    state_->guarded(collective, [&] {
      if (const auto work = start()) work->wait();
    });
  }

  void reduce_on_side(const torch::Tensor& out, const torch::Tensor& in, bool adds);

  std::shared_ptr<detail::CommunicatorState> state_ = std::make_shared<detail::CommunicatorState>();
};

inline Pending Communicator::all_gather_into_async(const torch::Tensor& out, const torch::Tensor& in) {
  const torch::NoGradGuard no_grad;
  if (!begin(out, in, "all_gather_into")) {
    detail::copy_memory(out, in);
    return {};
  }
  torch::Tensor to = detail::byte_view(out), from = detail::byte_view(in);
  count(Collective::all_gather, out);
  const auto start = [&] { return detail::all_gather_flat(backend(out), to, from); };
  if (!out.is_cpu()) return Pending(state_->side->run([&] { finish(Collective::all_gather, start); }, out, in));
  return {state_, Collective::all_gather, state_->guarded(Collective::all_gather, start)};
}

inline void Communicator::broadcast(const torch::Tensor& tensor, int root) {
  if (root < 0 || root >= size()) {
    throw Error(ExitCode::user_code, "broadcast from rank " + std::to_string(root) + ": there are ranks 0 to " +
                                         std::to_string(size() - 1) + ".");
  }
  if (!begin(tensor, "broadcast")) return;
  const torch::NoGradGuard no_grad;
  count(Collective::broadcast, tensor);
  std::vector<torch::Tensor> flat{detail::byte_view(tensor)};
  auto options = detail::options_for<c10d::BroadcastOptions>(tensor);
  options.rootRank = root;
  run(tensor, [&] { finish(Collective::broadcast, [&] { return backend(tensor).broadcast(flat, options); }); });
}

inline void Communicator::all_to_all(const torch::Tensor& out, const torch::Tensor& in) {
  const torch::NoGradGuard no_grad;
  detail::check_pair(out, in, 1, state_->device, "all_to_all");
  if (in.numel() % size() != 0) {
    throw Error(ExitCode::user_code, "all_to_all cannot cut " + std::to_string(in.numel()) + " elements into " +
                                         std::to_string(size()) + " equal parts.");
  }
  torch::Tensor to = detail::byte_view(out), from = detail::byte_view(in);
  if (size() == 1) {
    to.copy_(from);
    return;
  }
  if (in.numel() == 0) return;
  count(Collective::all_to_all, in);
  run(out, [&] { finish(Collective::all_to_all, [&] { return detail::all_to_all_flat(backend(out), to, from); }); });
}

inline std::span<const double> Communicator::all_gather(std::span<const double> mine) {
  if (size() == 1 || mine.empty()) return mine;
  const auto k = static_cast<int64_t>(mine.size());
  auto &from = state_->few_mine, &to = state_->few_all;
  if (!from.defined() || from.numel() != k) {
    const c10::InferenceMode normal(false);
    from = torch::empty({k}, torch::kDouble);
    to = torch::empty({k * size()}, torch::kDouble);
  }
  std::memcpy(from.data_ptr(), mine.data(), mine.size_bytes());
  count(Collective::all_gather, to);
  finish(Collective::all_gather, [&] { return detail::all_gather_flat(backend(to), to, from); });
  return {to.const_data_ptr<double>(), static_cast<size_t>(to.numel())};
}

}  // namespace dovetail

#include <dovetail/comm/rank_order.hpp>  // the members that sum in rank order
