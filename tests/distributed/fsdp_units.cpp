// SPDX-License-Identifier: Apache-2.0
// FSDP over real processes: the sum over ranks equals plain training, whatever each rank's forward does, with the
// collectives and bytes that the formulas say.
#include <dovetail/launch/launch.hpp>
#include <dovetail/precision/autocast_guard.hpp>
#include <dovetail/precision/convert.hpp>
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
  std::string text = o.reshard_after_forward ? "reshard" : "no reshard";
  if (o.reshard_after_forward.slices() > 1) text += " to " + std::to_string(*o.reshard_after_forward.slices());
  text += ", prefetch " + std::to_string(o.prefetch);
  if (o.shard_group > 0) text += ", groups of " + std::to_string(o.shard_group);
  if (o.max_gathered > 0) text += ", at most " + std::to_string(o.max_gathered) + " gathered";
  if (o.reduce_format) text += *o.reduce_format == dt::Format::bf16 ? ", reduced in bf16" : ", reduced in fp16";
  return text + (o.reduce == dt::at_boundary ? ", at_boundary" : "");
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

void accumulation(Rank me, dt::FSDP::Options options) {
  auto sharded = make<Sharded>();
  auto whole = make<Whole>();
  FsdpSession session(sharded, me.comm, options);
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < 2; ++i)
      session.micro_batch(
          i, [&] { return sharded->forward(me.inputs(10 * i + me.rank(), step)).pow(2).sum(); }, 2);
    session.step(0.02);
    train_plainly(*whole, 0.02, [&] {
      Tensor sum = torch::zeros({});
      for (int r = 0; r < me.size(); ++r)
        for (int i = 0; i < 2; ++i) sum = sum + whole->forward(me.inputs(10 * i + r, step)).pow(2).sum();
      return sum;
    });
  }
  me.compare(session, sharded, *whole, 1e-5, "C-66 accumulation, " + say(options));
}

/// Each rank goes through other units, in another order, another number of times, and all of it changes from step to
/// step.
void ranks_that_differ(Rank me, dt::FSDP::Options options) {
  auto sharded = make<Sharded>();
  auto whole = make<Whole>();
  FsdpSession session(sharded, me.comm, options);
  const auto of = [](const std::vector<std::string>& now, int rank) { return now[std::size_t(rank) % now.size()]; };
  const std::vector<std::vector<std::string>> orders = {{"abc", "c", "cab"}, {"abc", "abc", "abc"},
                                                        {"", "b", "aab"},    {"cba", "abc", "bca"},
                                                        {"c", "", ""},       {"abcabc", "cc", "acb"}};
  for (int step = 0; step < 18; ++step) {
    const auto& now = orders[std::size_t(step) % orders.size()];
    {
      torch::NoGradGuard no_grad;
      session.fsdp.before_forward(session.run);
      const Tensor out = sharded->along(me.inputs(0), of(now, me.size() - 1 - me.rank()));
      session.fsdp.finish_forward(session.run);
      const Tensor expected = whole->along(me.inputs(0), of(now, me.size() - 1 - me.rank()));
      me.check.that((out - expected).abs().max().item<float>() < 1e-4,
                    "evaluation of ranks that differ, step " + std::to_string(step));
    }
    session.train(0.01, [&] { return sharded->along(me.inputs(me.rank(), step), of(now, me.rank())).pow(2).mean(); });
    train_plainly(*whole, 0.01, [&] {
      Tensor sum = torch::zeros({});
      for (int r = 0; r < me.size(); ++r) sum = sum + whole->along(me.inputs(r, step), of(now, r)).pow(2).mean();
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

/// To the bit what one process computes: each rank's gradient rounded once to the format in which it is sent, summed in
/// fp32 over the ranks of a shard group in their order, micro-batch by micro-batch, and then over the replicas in
/// theirs.
void emulated(Rank me, dt::FSDP::Options options, int micro_batches, dt::PrecisionTraits precision,
              const std::string& id) {
  auto sharded = make<Sharded>();
  auto whole = make<Whole>();
  FsdpSession session(sharded, me.comm, options, precision);
  const bool low = precision.compute == dt::Format::bf16, late = options.reduce == dt::at_boundary;
  const auto loss = [&](auto& net, int rank, int step, int micro_batch) {
    std::optional<dt::AutocastGuard> guard;
    if (low) guard.emplace(c10::kCPU, torch::kBFloat16);
    return net->forward(me.inputs(10 * micro_batch + rank, step)).to(torch::kFloat32).pow(2).sum();
  };
  const int group = options.group_sizes(me.size()).shard;
  const auto sent = [&](const Tensor& gradient) {
    if (!options.reduce_format || group == 1) return gradient.clone();
    return gradient.to(dt::dtype_of(*options.reduce_format)).to(torch::kFloat32);
  };
  const auto add = [](std::vector<Tensor>& sums, const std::vector<Tensor>& more) {
    if (sums.empty()) {
      for (const Tensor& one : more) sums.push_back(one.clone());
      return;
    }
    for (std::size_t i = 0; i < more.size(); ++i) sums[i].add_(more[i]);
  };
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < micro_batches; ++i)
      session.micro_batch(
          i, [&] { return loss(sharded, me.rank(), step, i); }, micro_batches);
    session.step(0.01);

    std::vector<Tensor> total;
    for (int first = 0; first < me.size(); first += group) {
      std::vector<Tensor> main;  // of this group
      for (int i = 0; i < micro_batches; i += late ? micro_batches : 1) {
        std::vector<Tensor> reduced;
        for (int r = first; r < first + group; ++r) {
          whole->zero_grad();
          for (int k = i; k < (late ? micro_batches : i + 1); ++k) loss(whole, r, step, k).backward();
          std::vector<Tensor> gradients;
          for (const auto& parameter : whole->parameters()) gradients.push_back(sent(parameter.grad()));
          add(reduced, gradients);
        }
        add(main, reduced);
      }
      add(total, main);
    }
    torch::NoGradGuard no_grad;
    std::size_t i = 0;
    for (auto& parameter : whole->parameters()) parameter.sub_(total[i++], 0.01);
  }
  me.compare(session, sharded, *whole, 0,
             id + (low ? "bf16 units, " : "fp32 units, ") + say(options) + ", " + std::to_string(micro_batches) +
                 " micro-batches");
}

/// What a rank keeps between a forward and its backward, and what wrong options say.
void slices(Rank me, int k) {
  auto sharded = make<Sharded>();
  FsdpSession session(sharded, me.comm, {.reshard_after_forward = dt::to_ranks(k), .prefetch = 0});
  const auto& units = session.fsdp.units().units();
  for (int step = 0; step < 2; ++step) {
    session.train(0.01, [&] {
      const Tensor loss = sharded->forward(me.inputs(me.rank(), step)).sum();
      std::size_t kept = 0;  // of all units but the last, which is whole until backward begins
      for (std::size_t u = 0; u + 1 < units.size(); ++u)
        for (const auto& segment : units[u].segments()) kept += std::size_t(segment.layout().size() / k) * 4;
      me.check.that(kept > 0 && session.slice_bytes() == kept,
                    "C-01 slices of " + std::to_string(session.slice_bytes()) + " bytes after forward, expected " +
                        std::to_string(kept));
      return loss;
    });
    me.check.that(session.slice_bytes() == 0 && session.full_bytes() == 0, "slices are gone after backward");
  }
  torch::NoGradGuard no_grad;
  session.fsdp.before_forward(session.run);
  (void)sharded->forward(me.inputs(0));
  me.check.that(session.slice_bytes() == 0, "an evaluation keeps no slices");
  session.fsdp.finish_forward(session.run);
  session.fsdp.teardown(session.run);
}

/// A gradient inside the forward keeps units whole, here on one rank only: it takes part in gathers of slices all the
/// same.
void slices_beside_whole_units(Rank me, int k) {
  auto sharded = make<Sharded>();
  auto whole = make<Whole>();
  FsdpSession session(sharded, me.comm, {.reshard_after_forward = dt::to_ranks(k)});
  const auto loss = [&](auto& net, int rank, int step) {
    const Tensor x = me.inputs(rank, step).requires_grad_(rank == 0);
    Tensor sum = net->forward(x).pow(2).sum();
    if (rank == 0) sum = sum + torch::autograd::grad({sum}, {x}, {}, true, true)[0].pow(2).sum() * 0.01;
    return sum;
  };
  for (int step = 0; step < 3; ++step) {
    session.train(0.01, [&] { return loss(sharded, me.rank(), step); });
    train_plainly(*whole, 0.01, [&] {
      Tensor sum = torch::zeros({});
      for (int r = 0; r < me.size(); ++r) sum = sum + loss(whole, r, step);
      return sum;
    });
  }
  me.compare(session, sharded, *whole, 1e-5, "C-06 slices beside whole units, to_ranks(" + std::to_string(k) + ")");
}

/// Every rank says the same, and goes on.
void refusals(Rank me) {
  const auto refused = [&](dt::FSDP::Options options, const std::string& with, dt::ExitCode code,
                           torch::ScalarType dtype = torch::kFloat32) {
    auto model = make<Sharded>();
    model->to(dtype);
    try {
      FsdpSession session(model, me.comm, options);
    } catch (const dt::Error& error) {
      me.check.that(error.code() == code && std::string(error.what()).find(with) != std::string::npos,
                    "'" + with + "' is refused with: " + error.what());
      return;
    }
    me.check.that(false, "'" + with + "' is not refused");
  };
  const auto arguments = dt::ExitCode::arguments;
  const int odd = me.size() + 1;
  refused({.shard_group = odd}, "shard_group is " + std::to_string(odd) + " on", arguments);
  refused({.shard_group = -1}, "shard_group is -1", arguments);
  refused({.reshard_after_forward = dt::to_ranks(odd)}, "to_ranks(" + std::to_string(odd) + ")", arguments);
  refused({.reshard_after_forward = dt::to_ranks(0)}, "to_ranks(0)", arguments);
  refused({.reshard_after_forward = dt::to_ranks(me.size()), .shard_group = 1}, "the 1 ranks that share", arguments);
  refused({.max_gathered = -1}, "max_gathered is negative", arguments);
  refused({.reduce_format = dt::Format::fp64}, "reduce_format cannot be Double", arguments);
  refused({.reduce_format = dt::Format::bf16}, "is summed in Double", arguments, torch::kFloat64);
}

std::vector<int> divisors(int of) {
  std::vector<int> all;
  for (int k = 1; k <= of; ++k)
    if (of % k == 0) all.push_back(k);
  return all;
}

/// Groups of ranks that share a replica, slices, formats, limits.
void meshes(Rank me) {
  using dt::Format;
  for (const int group : divisors(me.size())) {
    for (const int k : divisors(group)) {
      const dt::FSDP::Options options{.reshard_after_forward = dt::to_ranks(k), .prefetch = 2, .shard_group = group};
      parity(me, options);
      accumulation(me, options);
      if (k == 2) ranks_that_differ(me, options);
    }
    for (const auto reduce : {dt::every_micro_batch, dt::at_boundary}) {
      dt::FSDP::Options options{.reduce = reduce, .shard_group = group};
      for (const int micro_batches : {1, 2}) {
        emulated(me, options, micro_batches, {}, "C-25 C-72 ");
        emulated(me, options, micro_batches, dt::BF16Mixed::traits, "C-33 P40 ");
      }
      options.reduce_format = Format::bf16;
      for (const int micro_batches : {1, 2}) {
        emulated(me, options, micro_batches, {}, "C-34 ");
        emulated(me, options, micro_batches, dt::BF16Mixed::traits, "C-33 P40 ");
      }
      options.reduce_format = Format::fp16;
      emulated(me, options, 2, {}, "C-34 ");
    }
  }
  emulated(me, {.reduce_format = Format::fp32}, 1, {}, "C-34 ");
  for (const int k : divisors(me.size()))
    if (k > 1 && k < me.size()) {
      slices(me, k);
      slices_beside_whole_units(me, k);
    }
  for (const int most : {1, 2, 3}) {
    const dt::FSDP::Options options{.prefetch = 3, .max_gathered = most};
    parity(me, options);
    ranks_that_differ(me, options);
    counts(me, options, 2);
  }
  refusals(me);
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
  for (const auto reduce : {dt::every_micro_batch, dt::at_boundary}) accumulation(me, {.reduce = reduce});
  meshes(me);
  memory(me);
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
  for (const char* ranks : {"2", "3", "4"})
    check.ended(support::run_self({"--ranks", ranks, "-"}, {}, 300), 0, std::string(ranks) + " ranks");
  return check.summary();
}
