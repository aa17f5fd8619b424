// SPDX-License-Identifier: Apache-2.0
// The collectives over 2, 3 and 4 real processes, against values by formula; what they count, and what they allocate.
#include <dovetail/comm/communicator.hpp>
#include <dovetail/comm/gather_text.hpp>
#include <dovetail/comm/rank_groups.hpp>
#include <dovetail/launch/launch.hpp>

#include <torch/types.h>

#include "support/run_self.hpp"

// Counts what this thread asks the heap for; Gloo's threads are not meant.
extern "C" void* __libc_malloc(size_t);
static thread_local int64_t allocations = 0;
extern "C" void* malloc(size_t bytes) {
  ++allocations;
  return __libc_malloc(bytes);
}

namespace {

using dovetail::Collective;
using dovetail::Communicator;
using dovetail::Count;
using dovetail::Error;
using dovetail::ExitCode;

int checked = 0;

void expect(bool holds, const std::string& what) {
  ++checked;
  if (!holds)
    throw Error(ExitCode::user_code,
                what + " is not as expected on rank " + std::to_string(dovetail::current_ranks().rank));
}

void expect_equal(const torch::Tensor& got, const torch::Tensor& expected, const std::string& what) {
  ++checked;
  if (!got.equal(expected))
    throw Error(ExitCode::user_code, what + " on rank " + std::to_string(dovetail::current_ranks().rank) + ": got " +
                                         c10::str(got) + ", expected " + c10::str(expected));
}

const std::vector<torch::ScalarType> moved{torch::kFloat,    torch::kDouble, torch::kHalf,
                                           torch::kBFloat16, torch::kLong,   torch::kInt,
                                           torch::kByte,     torch::kBool,   torch::kComplexFloat};

/// Rank r's input: element i is r * 10 + i, small enough to be exact in every format.
torch::Tensor input(int rank, int64_t n, torch::ScalarType dtype) {
  return (torch::arange(n) + rank * 10).to(dtype);
}

torch::Tensor sum_of_inputs(int ranks, int64_t n) {
  torch::Tensor sum = torch::zeros({n}, torch::kDouble);
  for (int r = 0; r < ranks; ++r) sum += input(r, n, torch::kDouble);
  return sum;
}

void check_moving(Communicator& all) {
  const int rank = all.rank(), ranks = all.size();
  for (const auto dtype : moved) {
    const std::string name = c10::toString(dtype);
    for (const int64_t n : {1, 5, 1000}) {
      std::vector<torch::Tensor> parts, from_each;
      for (int r = 0; r < ranks; ++r) {
        parts.push_back(input(r, n, dtype));
        from_each.push_back(input(r, n * ranks, dtype).narrow(0, rank * n, n));
      }
      const auto expected = torch::cat(parts);
      auto out = torch::zeros({n * ranks}, dtype);
      all.all_gather_into(out, parts[static_cast<size_t>(rank)]);
      expect_equal(out, expected, "all_gather of " + name);
      out.zero_();
      out.narrow(0, rank * n, n).copy_(parts[static_cast<size_t>(rank)]);
      all.all_gather_into(out, out.narrow(0, rank * n, n));
      expect_equal(out, expected, "all_gather in place of " + name);
      all.all_to_all(out, input(rank, n * ranks, dtype));
      expect_equal(out, torch::cat(from_each), "all_to_all of " + name);
      for (int root = 0; root < ranks; ++root) {
        auto sent = input(rank, n, dtype);
        all.broadcast(sent, root);
        expect_equal(sent, input(root, n, dtype), "broadcast of " + name);
      }
    }
  }
  auto scalar = torch::tensor(static_cast<double>(rank));
  all.broadcast(scalar, ranks - 1);
  expect_equal(scalar, torch::tensor(static_cast<double>(ranks - 1)), "broadcast of a scalar");
  auto none = torch::zeros({0});
  all.broadcast(none, 0);
  all.all_gather_into(none, none);
  all.reduce_scatter(none, none);
  all.all_reduce(none);
}

void check_summing(Communicator& all) {
  const int rank = all.rank(), ranks = all.size();
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kLong}) {
    const std::string name = c10::toString(dtype);
    for (const int64_t n : {1, 2, 7, 12}) {
      const auto sum = sum_of_inputs(ranks, n).to(dtype);
      auto tensor = input(rank, n, dtype);
      all.all_reduce(tensor);
      expect_equal(tensor, sum, "all_reduce of " + name);
      tensor = input(rank, n, dtype);
      all.all_reduce_deterministic(tensor);
      expect_equal(tensor, sum, "all_reduce_deterministic of " + name);
      const auto whole = input(rank, n * ranks, dtype);
      const auto mine = sum_of_inputs(ranks, n * ranks).narrow(0, rank * n, n);
      const auto wide = dovetail::detail::sum_dtype(dtype);
      auto out = torch::zeros({n}, wide);
      all.reduce_scatter(out, whole);
      expect_equal(out, mine.to(wide), "reduce_scatter of " + name);
      if (wide != dtype) {
        auto narrow = torch::zeros({n}, dtype);
        all.reduce_scatter(narrow, whole);
        expect_equal(narrow, mine.to(dtype), "reduce_scatter of " + name + " into itself");
      }
      auto part = whole.clone();
      all.reduce_scatter(part.narrow(0, rank * n, n), part);
      expect_equal(part.narrow(0, rank * n, n), mine.to(dtype), "reduce_scatter in place of " + name);
    }
  }
  auto image =
      torch::arange(2 * 3 * 4 * 5).to(torch::kFloat).view({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast);
  auto leaf = (image * (1 + rank)).requires_grad_(true);
  all.all_reduce_mean(leaf);
  expect_equal(leaf.detach(), image * (0.5 * (ranks + 1)), "all_reduce_mean of a channels-last leaf");
  expect(leaf.is_leaf() && leaf.requires_grad(), "the leaf");
  bool refused = false;
  try {
    all.all_reduce_mean(torch::ones({2}, torch::kLong));
  } catch (const Error& error) {
    refused = error.code() == ExitCode::user_code;
  }
  expect(refused, "a mean of integers");
}

/// Sums whose value depends on the order: the rank order must come out, at every position and on every rank.
void check_order(Communicator& all) {
  const int rank = all.rank(), ranks = all.size();
  const int64_t n = 1003;
  const auto value = [&](int r) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(77 + r));
    return torch::randn({n * ranks}, generator) * std::pow(10.0, 3 * (r % 3));
  };
  torch::Tensor in_order = value(0), backwards = value(ranks - 1);
  for (int r = 1; r < ranks; ++r) {
    in_order = in_order + value(r);
    backwards = backwards + value(ranks - 1 - r);
  }
  if (ranks > 2) expect(!in_order.equal(backwards), "the order matters");
  auto whole = value(rank);
  all.all_reduce_deterministic(whole);
  expect_equal(whole, in_order, "all_reduce_deterministic, to the bit");
  auto part = torch::empty({n});
  all.reduce_scatter(part, value(rank));
  expect_equal(part, in_order.narrow(0, rank * n, n), "reduce_scatter, to the bit");
  for (const int64_t odd : {1, 2, 5, 1001}) {  // not divisible by the number of ranks
    auto cut = value(rank).narrow(0, 0, odd).clone();
    all.all_reduce_deterministic(cut);
    expect_equal(cut, in_order.narrow(0, 0, odd), "all_reduce_deterministic of odd sizes");
  }
  // Half formats are summed in fp32 and rounded once.
  torch::Tensor sum = torch::zeros({n * ranks});
  for (int r = 0; r < ranks; ++r) sum = sum + value(r).to(torch::kBFloat16).to(torch::kFloat);
  auto low = value(rank).to(torch::kBFloat16);
  all.all_reduce_deterministic(low);
  expect_equal(low, sum.to(torch::kBFloat16), "all_reduce_deterministic of bf16");
}

void check_asynchronous(Communicator& all) {
  const int rank = all.rank(), ranks = all.size();
  std::vector<torch::Tensor> gathered, parts;
  std::vector<dovetail::Pending> pending;
  for (int64_t k = 1; k <= 4; ++k) {
    gathered.push_back(torch::empty({k * ranks}));
    parts.push_back(torch::empty({k}));
    pending.push_back(all.all_gather_into_async(gathered.back(), torch::full({k}, static_cast<double>(rank + k))));
    pending.push_back(all.reduce_scatter_async(parts.back(), torch::full({k * ranks}, static_cast<double>(k))));
  }
  for (auto one = pending.rbegin(); one != pending.rend(); ++one) {
    expect(one->waiting(), "waiting");
    one->wait();
    expect(!one->waiting(), "waiting");
    one->wait();  // nothing more to do
  }
  for (int64_t k = 1; k <= 4; ++k) {
    for (int r = 0; r < ranks; ++r)
      expect_equal(gathered[static_cast<size_t>(k - 1)].narrow(0, r * k, k),
                   torch::full({k}, static_cast<double>(r + k)), "an asynchronous all_gather");
    expect_equal(parts[static_cast<size_t>(k - 1)], torch::full({k}, static_cast<double>(k * ranks)),
                 "an asynchronous reduce_scatter");
  }
  { const auto dropped = all.reduce_scatter_async(parts[0], torch::ones({ranks})); }
  all.barrier();
}

void check_small(Communicator& all) {
  const int rank = all.rank(), ranks = all.size();
  for (const size_t k : {1u, 3u, 2u}) {
    std::vector<double> mine;
    for (size_t i = 0; i < k; ++i) mine.push_back(100.0 * rank + static_cast<double>(i) + 0.5);
    const auto got = all.all_gather(mine);
    expect(got.size() == k * static_cast<size_t>(ranks), "the size of all_gather");
    for (size_t i = 0; i < got.size(); ++i)
      expect(got[i] == 100.0 * static_cast<double>(i / k) + static_cast<double>(i % k) + 0.5, "all_gather of numbers");
  }
  const auto texts =
      dovetail::all_gather_text(all, std::string(static_cast<size_t>(rank), 'x') + (rank == 1 ? "\n" : ""));
  for (int r = 0; r < ranks; ++r)
    expect(texts[static_cast<size_t>(r)] == std::string(static_cast<size_t>(r), 'x') + (r == 1 ? "\n" : ""),
           "all_gather_text");

  if (std::getenv("TORCH_DISTRIBUTED_DEBUG") != nullptr) return;  // checks allocate
  // A step's small collective may cost no allocation of ours: as many as c10d's call on tensors that exist.
  const std::vector<double> mine{1, 2, 3};
  auto from = torch::zeros({3}, torch::kDouble), to = torch::zeros({3 * ranks}, torch::kDouble);
  (void)all.all_gather(mine);
  int64_t ours = allocations;
  (void)all.all_gather(mine);
  ours = allocations - ours;
  const auto gloo =
      dovetail::detail::connect_ranks(dovetail::current_ranks(), {}, std::make_shared<dovetail::CommunicationCounts>());
  dovetail::detail::all_gather_flat(*gloo.backend, to, from)->wait();
  int64_t theirs = allocations;
  dovetail::detail::all_gather_flat(*gloo.backend, to, from)->wait();
  theirs = allocations - theirs;
  expect(theirs > 0, "the counter of allocations");
  expect(ours <= theirs,
         "allocations of all_gather, " + std::to_string(ours) + " against " + std::to_string(theirs) + ",");
  gloo.backend->barrier()->wait();
}

void check_counts(Communicator& all) {
  const int64_t ranks = all.size(), rank = all.rank();
  const auto happened = [&](auto f) {
    const auto before = all.counts();
    f();
    return all.counts() - before;
  };
  const auto is = [&](Count got, int64_t calls, int64_t bytes, const std::string& what) {
    expect(got == Count{calls, bytes}, "the count of " + what + ", " + std::to_string(got.calls) + " calls and " +
                                           std::to_string(got.bytes) + " bytes,");
  };
  const int64_t n = 24;  // divisible by 2, 3 and 4
  auto whole = torch::zeros({n}), part = torch::zeros({n / ranks});
  const int64_t share = (ranks - 1) * n * 4 / ranks;
  is(happened([&] { all.all_reduce(whole); }), 1, 2 * share, "all_reduce");
  is(happened([&] { all.all_reduce_mean(whole); }), 1, 2 * share, "all_reduce_mean");
  is(happened([&] { all.all_reduce_deterministic(whole); }), 1, 2 * share, "all_reduce_deterministic");
  is(happened([&] { all.all_gather_into(whole, part); }), 1, share, "all_gather_into");
  is(happened([&] { all.reduce_scatter(part, whole); }), 1, share, "reduce_scatter");
  is(happened([&] { all.all_to_all(torch::zeros({n}), whole); }), 1, share, "all_to_all");
  is(happened([&] { all.broadcast(whole, 0); }), 1, share, "broadcast");
  is(happened([&] { all.barrier(); }), 1, 0, "barrier");
  is(happened([&] { (void)all.all_gather(std::vector<double>{1, 2}); }), 1, (ranks - 1) * 16, "all_gather of numbers");
  const int64_t padded = (n + 1 + ranks - 1) / ranks * ranks;
  is(happened([&] { all.all_reduce_deterministic(torch::zeros({n + 1})); }), 1, 2 * (ranks - 1) * padded * 4 / ranks,
     "a padded all_reduce_deterministic");
  auto low_part = torch::zeros({n / ranks}, torch::kBFloat16), low = torch::zeros({n}, torch::kBFloat16);
  is(happened([&] { all.all_gather_into(low, low_part); }), 1, share / 2, "all_gather_into of bf16");
  std::vector<torch::Tensor> tensors{whole};
  is(happened([&] { all.process_group()->allreduce(tensors)->wait(); }), 1, 2 * share, "c10d's allreduce");
  auto copy = all;
  is(happened([&] { copy.all_reduce(whole); }), 1, 2 * share, "a copy's all_reduce");
  is(happened([&] {
       try {
         all.all_gather_into(whole, torch::zeros({n}));
       } catch (const Error&) {
         return;
       }
       expect(false, "a wrong size");
     }),
     0, 0, "a refused call");
  expect(all.counts().of(Collective::broadcast).calls > 0, "the broadcasts on rank " + std::to_string(rank));
}

/// The same connection serves several groups, one after the other and side by side.
void check_groups(Communicator& first) {
  Communicator second = Communicator::connect(dovetail::current_ranks(), {.step = std::chrono::seconds(20)});
  auto a = torch::ones({3}), b = torch::full({3}, 2.0);
  first.all_reduce(a);
  second.all_reduce(b);
  second.set_timeout(std::chrono::seconds(10));
  second.all_reduce(b);
  expect_equal(a, torch::full({3}, 1.0 * first.size()), "the first group");
  expect_equal(b, torch::full({3}, 2.0 * first.size() * first.size()), "the second group");
  second.barrier();
}

/// Groups of some of the ranks: who is in them, that they count with the whole, and what their errors say.
void check_rank_groups(Communicator& all) {
  const int rank = all.rank(), ranks = all.size();
  const auto members = [](Communicator& group, int rank) {
    const double mine = rank;
    const auto got = group.all_gather(std::span<const double>(&mine, 1));
    return std::vector<double>(got.begin(), got.end());
  };
  for (int round = 0; round < 2; ++round)  // the same groups once more, side by side
    for (int k = 1; k <= ranks; ++k) {
      if (ranks % k != 0) continue;
      auto near = dovetail::shard_group(all, k), far = dovetail::replica_group(all, k);
      std::vector<double> near_ranks, far_ranks;
      for (int i = 0; i < k; ++i) near_ranks.push_back(rank / k * k + i);
      for (int i = rank % k; i < ranks; i += k) far_ranks.push_back(i);
      const auto before = all.counts();
      expect(members(near, rank) == near_ranks, "shard groups of " + std::to_string(k));
      expect(members(far, rank) == far_ranks, "replica groups of " + std::to_string(k));
      const auto sent = all.counts() - before;
      expect(sent == Count{(k > 1) + (k < ranks), (k - 1) * 8 + (ranks / k - 1) * 8}, "what groups count");
      expect(near.rank() == rank % k && near.size() == k && far.rank() == rank / k && far.size() == ranks / k,
             "places in groups");
      // All groups at once, and the whole between them.
      auto a = torch::ones({5}), b = torch::ones({5});
      near.all_reduce_deterministic(a);
      far.all_reduce(b);
      all.all_reduce(a);
      expect_equal(a, torch::full({5}, 1.0 * k * ranks), "sums within groups and over all");
      expect_equal(b, torch::full({5}, 1.0 * (ranks / k)), "sums over replicas");
    }
  for (const int k : {0, -1, ranks + 1}) {
    try {
      (void)dovetail::shard_group(all, k);
      expect(false, "a group that does not fit");
    } catch (const Error& error) {
      expect(error.code() == ExitCode::user_code, "groups of " + std::to_string(k));
    }
  }
  if (ranks < 4) return;
  auto pair = dovetail::shard_group(all, 2);
  const auto before = all.timeouts().step;
  all.set_timeout(std::chrono::milliseconds(300));  // the group follows
  if (rank == 2) {
    try {
      pair.barrier();  // rank 3 does not come
      expect(false, "a barrier without the other rank");
    } catch (const Error& error) {
      const std::string text = error.what();
      expect(error.code() == ExitCode::collective_timeout &&
                 text.find("barrier on rank 0 of 2 of the run's ranks 2, 3 waited 300 ms") != std::string::npos,
             "the error '" + text + "'");
    }
  }
  all.set_timeout(before);
  all.barrier();
}

/// Half of the ranks give twice as much: nothing may come of it but an error that says so.
int disagree() {
  auto all = Communicator::connect(dovetail::current_ranks());
  const int64_t n = all.rank() == 1 ? 2000 : 1000;
  auto out = torch::zeros({n * all.size()});
  all.all_gather_into(out, torch::ones({n}));
  all.barrier();
  return 0;
}

int meet() {
  (void)Communicator::connect(dovetail::current_ranks());
  return 0;
}

/// A rendezvous that cannot succeed is refused at once, not when the time for set-up is over.
void check_rendezvous(support::Checks& check) {
  const auto environment = [](const std::string& rank, const support::Words& more) {
    support::Words all{"RANK=" + rank, "WORLD_SIZE=2", "LOCAL_RANK=" + rank, "LOCAL_WORLD_SIZE=2"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  for (const std::string rank : {"0", "1"}) {
    check.ended(support::run_self({"meet"},
                                  environment(rank, {"MASTER_ADDR=no-such-machine.invalid", "MASTER_PORT=29567"}), 30),
                2, "rank " + rank + " with a MASTER_ADDR that nobody knows",
                {"[rank " + rank + "] rank " + rank + " cannot resolve MASTER_ADDR \"no-such-machine.invalid\""});
    check.ended(support::run_self({"meet"}, environment(rank, {"DOVETAIL_STORE=/no/such/folder/store"}), 30), 2,
                "rank " + rank + " with a DOVETAIL_STORE that nobody can make",
                {"cannot use DOVETAIL_STORE \"/no/such/folder/store\": there is no folder /no/such/folder"});
    check.ended(support::run_self({"meet"}, environment(rank, {"DOVETAIL_STORE=/tmp"}), 30), 2,
                "rank " + rank + " with a DOVETAIL_STORE that is a folder",
                {"DOVETAIL_STORE \"/tmp\": it is a folder"});
  }
}

/// Gloo finds out in a thread of its own; asked to, c10d compares every collective before it starts.
void check_disagreement(support::Checks& check) {
  check.ended(support::run_self({"--ranks", "2", "disagree"}, {}, 60), 3, "tensors of different sizes",
              {"a collective failed because ranks called different collectives", "TORCH_DISTRIBUTED_DEBUG=DETAIL"});
  check.ended(support::run_self({"--ranks", "2", "disagree"}, {"TORCH_DISTRIBUTED_DEBUG=DETAIL"}, 60), 3,
              "the same, compared before", {"all_gather on rank ", "Detected mismatch between collectives"});
  check.ended(support::run_self({"--ranks", "2", "work"}, {"TORCH_DISTRIBUTED_DEBUG=DETAIL"}, 110), 0,
              "all collectives, compared before");
}

int rank_main() {
  auto all = Communicator::connect(dovetail::current_ranks());
  check_moving(all);
  check_summing(all);
  check_order(all);
  check_asynchronous(all);
  check_small(all);
  check_counts(all);
  check_groups(all);
  check_rank_groups(all);
  all.barrier();
  std::cout << "rank " + std::to_string(all.rank()) + ": " + std::to_string(checked) + " values, " +
                   std::to_string(all.counts().calls) + " collectives\n"
            << std::flush;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    ::alarm(120);
    const dovetail::Launch launch(argc, argv);
    const std::string role = argv[argc - 1];
    return role == "disagree" ? disagree() : role == "meet" ? meet() : rank_main();
  }
  ::alarm(500);
  support::Checks check;
  for (const std::string ranks : {"2", "3", "4"}) {
    const auto run = support::run_self({"--ranks", ranks, "work"}, {}, 110);
    check.ended(run, 0, "collectives over " + ranks + " ranks", {"rank 0: ", "rank 1: "});
    std::cout << run.output;
  }
  check_rendezvous(check);
  check_disagreement(check);
  return check.summary();
}
