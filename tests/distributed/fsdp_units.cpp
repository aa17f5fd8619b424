// SPDX-License-Identifier: Apache-2.0
// FSDP over real processes: the sum over ranks equals plain training, whatever each rank's forward does, with the
// collectives and bytes that the formulas say.
#include <dovetail/launch/launch.hpp>
#include <dovetail/precision/autocast_guard.hpp>
#include <dovetail/precision/mixed.hpp>

#include "support/fsdp_session.hpp"
#include "support/run_self.hpp"

namespace {

namespace dt = dovetail;
using torch::Tensor;

struct BlockImpl : torch::nn::Module {
  torch::nn::Linear wide, narrow;
  torch::nn::LayerNorm norm;
  explicit BlockImpl(int width)
      : wide(register_module("wide", torch::nn::Linear(width, 2 * width + 1))),
        narrow(register_module("narrow", torch::nn::Linear(2 * width + 1, width))),
        norm(register_module("norm", torch::nn::LayerNorm(std::vector<int64_t>{width}))) {}
  Tensor forward(const Tensor& x) { return x + narrow(torch::tanh(wide(norm(x)))); }
};
TORCH_MODULE(Block);

template <class M>
struct Plain : M {
  using M::M;
};

/// A unit with a unit inside.
template <template <class> class Wrapped>
struct OuterImpl : torch::nn::Module {
  torch::nn::Linear own = register_module("own", torch::nn::Linear(5, 5));
  Wrapped<Block> inner = register_module("inner", Wrapped<Block>(5));
  Tensor forward(const Tensor& x) { return inner(own(x)); }
};

/// Odd sizes; one parameter of one element, which most ranks own nothing of.
template <template <class> class Wrapped>
struct NetImpl : torch::nn::Module {
  torch::nn::Linear stem = register_module("stem", torch::nn::Linear(3, 5));
  Wrapped<Block> a = register_module("a", Wrapped<Block>(5));
  Wrapped<Block> b = register_module("b", Wrapped<Block>(5));
  Wrapped<torch::nn::ModuleHolder<OuterImpl<Wrapped>>> c =
      register_module("c", Wrapped<torch::nn::ModuleHolder<OuterImpl<Wrapped>>>());
  Wrapped<torch::nn::Linear> one =
      register_module("one", Wrapped<torch::nn::Linear>(torch::nn::LinearOptions(5, 1).bias(false)));
  Tensor scale = register_parameter("scale", torch::ones({}));

  Tensor forward(const Tensor& x) { return along(x, "abc"); }
  Tensor along(const Tensor& x, const std::string& order) {
    Tensor y = stem(x);
    for (char unit : order) y = unit == 'a' ? a(y) : unit == 'b' ? b(y) : c(y);
    return one(y) * scale;
  }
};
using Sharded = NetImpl<dt::Unit>;
using Whole = NetImpl<Plain>;

template <class Net>
std::shared_ptr<Net> make() {
  torch::manual_seed(11);
  return std::make_shared<Net>();
}

struct Rank {
  support::Checks& check;
  dt::Communicator& comm;
  int rank() const { return comm.rank(); }
  int size() const { return comm.size(); }

  Tensor inputs(int of, int step = 0) const {
    torch::manual_seed(uint64_t(100 * step + of));
    return torch::randn({4, 3});
  }

  /// The models are whole again, equal to the plain one, and the same bits on every rank.
  void compare(FsdpSession& session, const std::shared_ptr<Sharded>& sharded, const Whole& whole, double tolerance,
               const std::string& what) {
    session.fsdp.teardown(session.run);
    const double difference = largest_difference(*sharded, whole);
    check.that(difference <= tolerance, what + ": differs from plain training by " + std::to_string(difference));
    for (const auto& item : sharded->named_parameters()) {
      const Tensor mine = item.value().detach().reshape({-1}), all = torch::empty({size() * mine.numel()});
      comm.all_gather_into(all, mine);
      check.that((all.view({size(), -1}) == mine).all().item<bool>(), what + ": ranks differ in " + item.key());
    }
  }
};

std::string say(const dt::FSDP::Options& o) {
  return std::string(o.reshard_after_forward ? "reshard" : "keep") + ", prefetch " + std::to_string(o.prefetch);
}

void parity(Rank me, dt::FSDP::Options options) {
  auto sharded = make<Sharded>();
  auto whole = make<Whole>();
  FsdpSession session(sharded, me.comm, options);
  for (int step = 0; step < 5; ++step) {
    session.train(0.05, [&] { return sharded->forward(me.inputs(me.rank(), step)).pow(2).sum(); });
    train_plainly(*whole, 0.05, [&] {
      Tensor sum = torch::zeros({});
      for (int r = 0; r < me.size(); ++r) sum = sum + whole->forward(me.inputs(r, step)).pow(2).sum();
      return sum;
    });
    me.check.that(session.full_bytes() == 0 && session.gradient_bytes() == 0,
                  "something is still gathered after a step");
  }
  me.compare(session, sharded, *whole, 1e-5, "C-60 C-67 parity, " + say(options));
}

void accumulation(Rank me) {
  auto sharded = make<Sharded>();
  auto whole = make<Whole>();
  FsdpSession session(sharded, me.comm);
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < 2; ++i)
      session.micro_batch(i, [&] { return sharded->forward(me.inputs(10 * i + me.rank(), step)).pow(2).sum(); });
    session.step(0.02);
    train_plainly(*whole, 0.02, [&] {
      Tensor sum = torch::zeros({});
      for (int r = 0; r < me.size(); ++r)
        for (int i = 0; i < 2; ++i) sum = sum + whole->forward(me.inputs(10 * i + r, step)).pow(2).sum();
      return sum;
    });
  }
  me.compare(session, sharded, *whole, 1e-5, "C-66 accumulation");
}

/// Each rank goes through other units, in another order, another number of times, and all of it changes from step to
/// step.
void ranks_that_differ(Rank me, dt::FSDP::Options options) {
  auto sharded = make<Sharded>();
  auto whole = make<Whole>();
  FsdpSession session(sharded, me.comm, options);
  const std::vector<std::vector<std::string>> orders = {{"abc", "c", "cab"}, {"abc", "abc", "abc"},
                                                        {"", "b", "aab"},    {"cba", "abc", "bca"},
                                                        {"c", "", ""},       {"abcabc", "cc", "acb"}};
  for (int step = 0; step < 18; ++step) {
    const auto& now = orders[std::size_t(step) % orders.size()];
    {
      torch::NoGradGuard no_grad;
      session.fsdp.before_forward(session.run);
      const Tensor out = sharded->along(me.inputs(0), now[std::size_t(me.size() - 1 - me.rank())]);
      session.fsdp.finish_forward(session.run);
      const Tensor expected = whole->along(me.inputs(0), now[std::size_t(me.size() - 1 - me.rank())]);
      me.check.that((out - expected).abs().max().item<float>() < 1e-4,
                    "evaluation of ranks that differ, step " + std::to_string(step));
    }
    session.train(
        0.01, [&] { return sharded->along(me.inputs(me.rank(), step), now[std::size_t(me.rank())]).pow(2).mean(); });
    train_plainly(*whole, 0.01, [&] {
      Tensor sum = torch::zeros({});
      for (int r = 0; r < me.size(); ++r)
        sum = sum + whole->along(me.inputs(r, step), now[std::size_t(r)]).pow(2).mean();
      return sum;
    });
  }
  me.compare(session, sharded, *whole, 1e-4, "ranks that differ, " + say(options));
}

/// Calls and bytes per step once the order is known.
void counts(Rank me, dt::FSDP::Options options, int accumulate) {
  auto sharded = make<Sharded>();
  FsdpSession session(sharded, me.comm, options);
  const auto step = [&](int number) {
    for (int i = 0; i < accumulate; ++i)
      session.micro_batch(i, [&] { return sharded->forward(me.inputs(me.rank(), number)).pow(2).sum(); });
    session.step(0.01);
  };
  step(0);
  const auto before = me.comm.counts();
  step(1);
  const auto after = me.comm.counts();

  int64_t units = 0, root = 0, last = 0;  // bytes sent to gather or reduce each once
  const auto sent = [&](const dt::FlatUnit& unit) {
    int64_t bytes = 0;
    for (const auto& segment : unit.segments()) bytes += (me.size() - 1) * segment.layout().part_size() * 4;
    return bytes;
  };
  for (const auto& unit : session.fsdp.units().units()) units += sent(unit);
  root = sent(session.fsdp.units().root());
  last = sent(session.fsdp.units().units().back());
  const int64_t n = int64_t(session.fsdp.units().units().size()), m = accumulate;
  const int64_t agreement = (me.size() - 1) * 8;
  // A unit is gathered in forward and again in backward, but for the last one, which is still there.
  const int64_t gathers = 1 + m * (options.reshard_after_forward ? 2 * n - 1 : n);
  const int64_t gathered = root + m * (options.reshard_after_forward ? 2 * units - last : units);
  const auto gather = after.of(dt::Collective::all_gather) - before.of(dt::Collective::all_gather);
  const auto reduce = after.of(dt::Collective::reduce_scatter) - before.of(dt::Collective::reduce_scatter);
  const std::string what =
      "C-23 C-41 C-86 counts, " + say(options) + ", accumulate " + std::to_string(accumulate) + ": ";
  const auto equal = [&](int64_t got, int64_t expected, const std::string& of) {
    me.check.that(got == expected, what + of + " " + std::to_string(got) + ", expected " + std::to_string(expected));
  };
  equal(gather.calls, gathers + m, "gathers, with one agreement for each forward");
  equal(gather.bytes, gathered + m * agreement, "bytes gathered");
  equal(reduce.calls, m * (n + 1), "reductions");
  equal(reduce.bytes, m * (units + root), "bytes reduced");
  equal(after.calls - before.calls, gathers + m + m * (n + 1), "all collectives");
  session.fsdp.teardown(session.run);
}

/// Every rank keeps its part and no more.
void memory(Rank me) {
  auto sharded = make<Sharded>();
  int64_t total = 0;
  for (const auto& parameter : sharded->parameters()) total += parameter.numel();
  FsdpSession session(sharded, me.comm);
  int64_t mine = 0, empty = 0, padded = 0;
  for (const auto& slot : session.run.gradients.slots) {
    mine += slot.held.numel();
    empty += slot.held.numel() == 0;
    me.check.that(slot.main.numel() == slot.held.numel(), "main gradient of " + slot.name);
  }
  for (const auto& unit : session.fsdp.units().units())
    for (const auto& segment : unit.segments()) padded += segment.layout().part_size();
  for (const auto& segment : session.fsdp.units().root().segments()) padded += segment.layout().part_size();
  me.check.that(padded - total / me.size() <= 6,
                "parts are " + std::to_string(padded) + " of " + std::to_string(total));
  me.check.that(mine <= padded && empty > 0, "pieces of rank " + std::to_string(me.rank()));
  const double sum = [&] {
    double all = 0;
    const double own = double(mine);
    for (double one : me.comm.all_gather(std::span<const double>(&own, 1))) all += one;
    return all;
  }();
  me.check.that(int64_t(sum) == total, "pieces of all ranks are the model");
  session.fsdp.teardown(session.run);
}

/// bf16 units: the same ranks emulated in one process, gradients summed in fp32 in rank order.
void low_precision(Rank me) {
  auto sharded = make<Sharded>();
  auto whole = make<Whole>();
  FsdpSession session(sharded, me.comm, {}, dt::BF16Mixed::traits);
  const auto loss = [&](auto& net, int rank, int step) {
    const dt::AutocastGuard guard(c10::kCPU, torch::kBFloat16);
    return net->forward(me.inputs(rank, step)).to(torch::kFloat32).pow(2).sum();
  };
  for (int step = 0; step < 5; ++step) {
    session.train(0.01, [&] { return loss(sharded, me.rank(), step); });
    std::vector<Tensor> sums;
    for (int r = 0; r < me.size(); ++r) {
      whole->zero_grad();
      loss(whole, r, step).backward();
      std::size_t i = 0;
      for (const auto& parameter : whole->parameters()) {
        if (r == 0)
          sums.push_back(parameter.grad().clone());
        else
          sums[i].add_(parameter.grad());
        ++i;
      }
    }
    torch::NoGradGuard no_grad;
    std::size_t i = 0;
    for (auto& parameter : whole->parameters()) parameter.sub_(sums[i++], 0.01);
  }
  me.compare(session, sharded, *whole, 0, "C-33 P40 bf16 units");
}

int rank_main() {
  support::Checks check;
  dt::Communicator comm = dt::Communicator::connect(dt::current_ranks());
  const Rank me{check, comm};
  for (bool reshard : {true, false})
    for (int prefetch : {0, 1, 2}) {
      const dt::FSDP::Options options{.reshard_after_forward = reshard, .prefetch = prefetch};
      parity(me, options);
      ranks_that_differ(me, options);
      for (int accumulate : {1, 2}) counts(me, options, accumulate);
    }
  accumulation(me);
  memory(me);
  low_precision(me);
  const int code = check.summary();
  comm.barrier();
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    ::alarm(300);
    dovetail::Launch launch(argc, argv);
    return rank_main();
  }
  ::setenv("OMP_NUM_THREADS", "1", 1);
  support::Checks check;
  for (const char* ranks : {"2", "3"})
    check.ended(support::run_self({"--ranks", ranks, "-"}, {}, 300), 0, std::string(ranks) + " ranks");
  return check.summary();
}
