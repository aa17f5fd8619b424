// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <dovetail/comm/communicator.hpp>
#include <dovetail/comm/gather_text.hpp>

#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace {

using dovetail::Collective;
using dovetail::Communicator;
using dovetail::Error;
using dovetail::ExitCode;

template <class F>
std::string complaint(F f, ExitCode code = ExitCode::user_code) {
  try {
    f();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "no error";
}

using Catch::Matchers::Contains;

}  // namespace

static_assert(dovetail::bytes_sent(Collective::all_reduce, 1200, 3) == 1600);
static_assert(dovetail::bytes_sent(Collective::all_gather, 1200, 3) == 800);
static_assert(dovetail::bytes_sent(Collective::reduce_scatter, 1200, 4) == 900);
static_assert(dovetail::bytes_sent(Collective::broadcast, 1200, 2) == 600);
static_assert(dovetail::bytes_sent(Collective::barrier, 1200, 2) == 0);
static_assert(dovetail::bytes_sent(Collective::all_reduce, 1200, 1) == 0);

TEST_CASE("counts add up, and differences of snapshots are what happened between", "[comm]") {
  dovetail::CommunicationCounts counts;
  counts.add(Collective::all_gather, 10);
  const auto before = counts;
  counts.add(Collective::all_gather, 5);
  counts.add(Collective::barrier, 0);
  CHECK(counts.calls == 3);
  CHECK(counts.bytes == 15);
  CHECK(counts.of(Collective::all_gather) == dovetail::Count{2, 15});
  CHECK(counts - before == dovetail::Count{2, 5});
}

TEST_CASE("with one rank everything is the identity and nothing is counted", "[comm]") {
  Communicator one;
  CHECK(one.rank() == 0);
  CHECK(one.size() == 1);
  const auto numbers = torch::arange(6).to(torch::kFloat);
  auto tensor = numbers.clone();
  one.all_reduce(tensor);
  one.all_reduce_mean(tensor);
  one.all_reduce_deterministic(tensor);
  one.broadcast(tensor, 0);
  one.barrier();
  one.set_timeout(std::chrono::seconds(1));
  CHECK(tensor.equal(numbers));
  auto out = torch::zeros({6});
  one.all_gather_into(out, tensor);
  CHECK(out.equal(numbers));
  out.zero_();
  one.reduce_scatter(out, tensor);
  CHECK(out.equal(numbers));
  out.zero_();
  one.all_to_all(out, tensor);
  CHECK(out.equal(numbers));
  const auto low = torch::arange(6).to(torch::kBFloat16);
  one.reduce_scatter(out.zero_(), low);  // summed in fp32
  CHECK(out.equal(numbers));
  one.all_gather_into(tensor, tensor);  // in place
  CHECK(tensor.equal(numbers));
  const std::vector<double> few{1, 2};
  const auto gathered = one.all_gather(few);
  CHECK(std::vector<double>(gathered.begin(), gathered.end()) == few);
  CHECK(dovetail::all_gather_text(one, "abc") == std::vector<std::string>{"abc"});
  CHECK_FALSE(one.all_gather_into_async(out, tensor).waiting());
  CHECK(one.counts().calls == 0);
  CHECK(one.counts().bytes == 0);
  CHECK(Communicator::connect(dovetail::Ranks{}).size() == 1);
}

TEST_CASE("tensors that do not fit are refused before anything is sent", "[comm]") {
  Communicator one;
  const auto six = torch::zeros({6});
  CHECK_THAT(complaint([&] { one.all_reduce(torch::Tensor()); }), Contains("all_reduce") && Contains("undefined"));
  CHECK_THAT(complaint([&] { one.all_reduce(torch::zeros({4, 4}).slice(1, 0, 2)); }), Contains("gaps"));
  CHECK_THAT(complaint([&] { one.all_reduce(torch::zeros({1}).expand({4})); }), Contains("gaps or overlaps"));
  CHECK_THAT(complaint([&] { one.all_reduce(torch::zeros({4}, torch::kMeta)); }), Contains("one on meta"));
  CHECK_THAT(complaint([&] { one.all_gather_into(six, torch::zeros({5})); }), Contains("given 6 and 5 elements"));
  CHECK_THAT(complaint([&] { one.all_gather_into(six, torch::zeros({6}, torch::kLong)); }),
             Contains("two dtypes, Float and Long"));
  CHECK_THAT(complaint([&] { one.reduce_scatter(torch::zeros({6}, torch::kDouble), six); }),
             Contains("cannot sum Float into Double"));
  CHECK_THAT(
      complaint([&] { one.reduce_scatter(torch::zeros({6}, torch::kHalf), torch::zeros({6}, torch::kBFloat16)); }),
      Contains("cannot sum BFloat16 into Half"));
  CHECK_THAT(complaint([&] { one.broadcast(six, 1); }), Contains("broadcast from rank 1: there are ranks 0 to 0"));
  CHECK_THAT(complaint([&] { one.broadcast(six, -1); }), Contains("broadcast from rank -1"));
}

TEST_CASE("rows are summed in rank order, half formats in fp32", "[comm]") {
  // (1e8 + 1) - 1e8 is 0 in fp32 and 1 in any order that cancels first.
  const auto rows = torch::tensor({1e8f, 1.0f, -1e8f}).view({3, 1});
  auto out = torch::empty({1});
  dovetail::detail::sum_rows(out, rows);
  CHECK(out.item<float>() == 0.0f);
  dovetail::detail::sum_rows(out, torch::tensor({1e8f, -1e8f, 1.0f}).view({3, 1}));
  CHECK(out.item<float>() == 1.0f);
  dovetail::detail::sum_rows(out, torch::tensor({256.0f, 1.0f, 1.0f}).to(torch::kBFloat16).view({3, 1}));
  CHECK(out.item<float>() == 258.0f);  // in bf16 it stays 256
  dovetail::detail::sum_rows(out, torch::tensor({3.0f}).view({1, 1}));
  CHECK(out.item<float>() == 3.0f);
}

TEST_CASE("the sum of rows by passes over memory, as on a GPU, has the bits of the one in blocks", "[comm]") {
  auto generator = at::detail::createCPUGenerator(5);
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kLong}) {
    const auto rows = (torch::randn({4, 501}, generator) * 100).to(dtype);
    for (const auto into : {dtype, dovetail::detail::sum_dtype(dtype)})
      for (const bool adds : {false, true}) {
        const auto before = (torch::randn({501}, generator) * 100).to(into);
        const auto expected = before.clone(), got = before.clone();
        dovetail::detail::sum_rows(expected, rows, adds);
        dovetail::detail::sum_rows_elsewhere(got, rows, adds);
        CHECK(got.equal(expected));
      }
  }
}

TEST_CASE("what libraries say in threads of their own has the exit code of its kind", "[comm]") {
  const auto code = [](const std::string& text) {
    CHECK(dovetail::detail::is_from_transport(text));
    return dovetail::detail::transport_failure(text);
  };
  CHECK(code("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, "
             "Timeout(ms)=30000) ran for 30012 milliseconds before timing out.") == ExitCode::collective_timeout);
  CHECK(code("NCCL error: remote process exited or there was a network error, NCCL version 2.30.7") ==
        ExitCode::peer_lost);
  CHECK(code("[/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:3021") == ExitCode::peer_lost);
  CHECK(code("[enforce fail at gloo/transport/tcp/pair.cc:464] op.preamble.length <= op.nbytes. 4000 vs 2000.") ==
        ExitCode::ranks_disagree);
  CHECK(code("NCCL error: unhandled cuda error") == ExitCode::user_code);
  CHECK_FALSE(dovetail::detail::is_from_transport("the connection to my database timed out"));
}

TEST_CASE("temporaries are used again", "[comm]") {
  dovetail::detail::Scratch scratch;
  auto first = scratch.take({10}, torch::kFloat);
  const void* memory = first.values.const_data_ptr();
  auto second = scratch.take({10}, torch::kFloat);
  CHECK(second.values.const_data_ptr() != memory);
  scratch.give(std::move(second));
  scratch.give(std::move(first));
  std::set<const void*> again;
  for (int i = 0; i < 2; ++i) again.insert(scratch.take({2, 5}, torch::kFloat).values.const_data_ptr());
  CHECK(again.count(memory) == 1);
  auto large = scratch.take({20}, torch::kDouble);
  memory = large.values.const_data_ptr();
  scratch.give(std::move(large));
  auto small = scratch.take({3}, torch::kBFloat16);
  CHECK(small.values.const_data_ptr() == memory);
  CHECK(small.values.sizes() == torch::IntArrayRef{3});
  {
    const c10::InferenceMode inference;
    scratch.give(std::move(small));
    scratch.give(scratch.take({1000}, torch::kFloat));
  }
  scratch.take({1000}, torch::kFloat).values.fill_(1);  // a tensor of inference mode would refuse
}

TEST_CASE("what libraries throw becomes an Error with its exit code", "[comm]") {
  const auto translated = [](const std::string& what, ExitCode code) {
    return complaint(
        [&] {
          dovetail::detail::throw_collective_error(std::runtime_error(what), "all_reduce", 1, 4,
                                                   std::chrono::milliseconds(1500));
        },
        code);
  };
  CHECK_THAT(translated("[/g/x.cc:1] Timed out waiting 1500ms for recv operation to complete\nframe #0",
                        ExitCode::collective_timeout),
             Contains("all_reduce on rank 1 of 4 waited 1500 ms") && !Contains("frame"));
  CHECK_THAT(translated("Connection closed by peer [127.0.0.1]:45", ExitCode::peer_lost),
             Contains("another rank is gone"));
  CHECK_THAT(translated("Read error [127.0.0.1]:45: Connection reset by peer", ExitCode::peer_lost),
             Contains("rank 1 of 4"));
  CHECK_THAT(translated("writev: Broken pipe", ExitCode::peer_lost), Contains("gone"));
  CHECK_THAT(translated("invalid tensor type", ExitCode::user_code), Contains("failed: invalid tensor type"));
  CHECK_THAT(complaint(
                 [] {
                   dovetail::detail::throw_collective_error(Error(ExitCode::numeric, "ours"), "x", 0, 2,
                                                            std::chrono::milliseconds(1));
                 },
                 ExitCode::numeric),
             Contains("ours"));
}
