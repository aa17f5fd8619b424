// SPDX-License-Identifier: Apache-2.0
// What a machine with one GPU can check, without a network:
//
//   gpu_checks              all of it; exit code 2 where there is no GPU
//   gpu_checks without-gpu  what needs none
#include <c10/cuda/CUDACachingAllocator.h>

#include <dovetail/core/memory_plan.hpp>
#include <dovetail/dovetail.hpp>

#include "gpu/loopback.hpp"
#include "support/conformance_job.hpp"
#include "support/run_self.hpp"

namespace {

namespace dt = dovetail;
using conformance::fit, conformance::quiet, conformance::rows;
using support::Checks;
using torch::Tensor;

const torch::Device gpu0(torch::kCUDA, 0);

int64_t allocated() {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].current;
}

void report(const std::string& what) {
  std::cout << what << "\n" << std::flush;
}

// ---- a run that asks for a GPU

int fit_on_gpu(int argc, char** argv) {
  const dt::Launch launch(argc, argv);
  conformance::Job<> job;
  dt::TrainerOptions options = quiet(1);
  options.device = "cuda";
  return fit<dt::DDP, dt::BF16Mixed>(options, job, rows()).steps == 6 ? 0 : 1;
}

void asked_for_a_gpu(Checks& check, bool there) {
  for (const std::string ranks : {"1", "2"}) {
    if (there && ranks == "2") continue;  // two ranks cannot share one
    const auto run = support::run_self({"--ranks", ranks, "fit"}, {}, 120);
    const support::Words says =
        there ? support::Words{}
              : support::Words{"dovetail: ", "the device is \"cuda\", but this machine has no GPU to use ("};
    check.ended(run, there ? 0 : 2, "a fit on the GPU, " + ranks + (there ? " rank" : " rank(s), without one"), says);
    if (!there) report("       " + run.output.substr(0, run.output.find('\n')));
  }
}

// ---- pairs

template <class... Each, class F>
void for_each_pair(dt::PairList<Each...>, F f) {
  const auto one = [&]<class S, class P>(dt::Pair<S, P> pair) {
    if constexpr (dt::compatible<S, P>) f(pair);
  };
  (one(Each{}), ...);
}

template <class P>
double tolerance() {
  using enum dt::Format;
  const dt::Format compute = P::traits.compute;
  return compute == fp64 ? 1e-10 : compute == fp32 ? 1e-4 : compute == fp16 ? 1e-2 : 5e-2;
}

/// Weights after some steps of every pair, on the CPU and on the GPU: at one rank, and as one of `ranks` over NCCL.
void parity(Checks& check, int ranks, const c10::intrusive_ptr<c10d::Backend>& nccl, bool on_gpu) {
  int pairs = 0;
  double worst = 0;
  for_each_pair(dt::BuiltInPairs{}, [&]<class S, class P>(dt::Pair<S, P>) {
    if (ranks > 1 && S::name == dt::SingleDevice::name) return;
    const std::string name =
        std::string(S::name) + " " + std::string(P::name) + ", " + std::to_string(ranks) + " ranks";
    const auto run = [&](const char* device, bool deterministic) {
      std::optional<gpu::World> world;
      if (ranks > 1) world.emplace(ranks, nccl);
      conformance::Job<> job;
      dt::TrainerOptions options = quiet(1);
      options.device = device;
      options.deterministic = deterministic;
      options.accumulate = 2;
      options.gradient_clip = dt::clip_norm(1.0);
      const auto outcome = fit<S, P>(options, job, rows(24 * ranks));
      return outcome.weights.cpu();
    };
    try {
      const Tensor expected = run("cpu", false);
      check.that(expected.isfinite().all().item<bool>(), name + ": finite on the CPU");
      ++pairs;
      if (!on_gpu) return;
      for (const bool deterministic : {false, true}) {
        const Tensor got = run("cuda", deterministic);
        const double apart = conformance::apart(got, expected);
        worst = std::max(worst, apart / tolerance<P>());
        check.that(apart <= tolerance<P>(), name + ": differs from the CPU by " + std::to_string(apart));
        check.that(got.equal(run("cuda", deterministic)), name + ": the same bits again");
      }
    } catch (const std::exception& error) {
      check.that(false, name + ": " + dt::detail::first_line(error.what()));
    }
  });
  check.that(pairs > 20, "pairs were compared");
  report("parity: " + std::to_string(pairs) + " pairs at " + std::to_string(ranks) + " ranks" +
         (on_gpu ? ", the worst at " + std::to_string(worst) + " of its tolerance" : " on the CPU alone"));
}

// ---- streams and lifetimes

dt::Communicator world_of(int ranks) {
  return dt::Communicator::connect({.world_size = ranks, .how = {.kind = dt::Rendezvous::Kind::recorded}}, {}, gpu0);
}

void collectives(Checks& check, const c10::intrusive_ptr<c10d::Backend>& nccl) {
  const gpu::World world(4, nccl);
  for (const bool deterministic : {false, true}) {
    dt::Communicator all = world_of(4);
    all.set_deterministic(deterministic);
    for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kLong}) {
      const std::string name = c10::toString(dtype);
      const auto options = torch::dtype(dtype).device(gpu0);
      const Tensor mine = torch::arange(6, options);
      Tensor whole = torch::empty({24}, options), sum = mine.clone(), part = torch::ones({6}, options);
      all.all_gather_into(whole, mine);
      check.that(whole.equal(mine.repeat(4)), "all_gather of " + name);
      all.all_reduce(sum);
      check.that(sum.equal(mine * 4), "all_reduce of " + name);
      sum = torch::arange(7, options);  // not divisible
      all.all_reduce_deterministic(sum);
      check.that(sum.equal(torch::arange(7, options) * 4), "all_reduce_deterministic of " + name);
      all.reduce_scatter_async(part, whole, /*adds=*/true).wait();
      check.that(part.equal(mine * 4 + 1), "reduce_scatter that adds, of " + name);
      all.reduce_scatter(part, whole);
      check.that(part.equal(mine * 4), "reduce_scatter of " + name);
      const Tensor wide = torch::zeros({6}, options.dtype(dt::detail::sum_dtype(dtype)));
      all.reduce_scatter(wide, whole);
      check.that(wide.equal((mine * 4).to(wide.scalar_type())), "reduce_scatter into its wider format, of " + name);
      all.reduce_scatter(whole.narrow(0, 0, 6), whole);
      check.that(whole.narrow(0, 0, 6).equal(mine * 4), "reduce_scatter in place, of " + name);
      all.broadcast(sum, 2);
      all.all_to_all(whole, mine.repeat(4));
      check.that(whole.equal(mine.repeat(4)), "all_to_all of " + name);
    }
    const auto numbers = all.all_gather(std::vector<double>{1, 2});
    check.that(numbers.size() == 8 && numbers[7] == 2, "few numbers beside the GPU");
  }
}

/// Work that takes the GPU long enough for the host to be far ahead.
Tensor long_product(const Tensor& start) {
  Tensor x = start;
  for (int i = 0; i < 40; ++i) x = torch::matmul(start, x) / 4096;
  return x;
}

void streams(Checks& check, const c10::intrusive_ptr<c10d::Backend>& nccl) {
  const Tensor start = torch::ones({4096, 4096}, torch::device(gpu0));
  dt::detail::SideStream side(gpu0);
  check.that(side.stream() != dt::detail::current_stream(gpu0), "the side stream is another one");
  Tensor made;
  const auto work = side.run([&] { made = long_product(start); });
  c10::Event reached(torch::kCUDA);
  reached.record(dt::detail::current_stream(gpu0));
  reached.synchronize();
  c10::Event end(torch::kCUDA);
  end.record(side.stream());
  check.that(!end.query(), "neither the host nor the current stream has waited for the side stream");
  work->wait();
  check.that(made.eq(1).all().item<bool>(), "the current stream waits for it when it is told to");

  // The collective comes after what the current stream was given before, and memory lives until it has been waited for.
  const gpu::World world(2, nccl);
  dt::Communicator all = world_of(2);
  const int64_t n = 1 << 22;
  for (int round = 0; round < 100; ++round) {
    Tensor out = torch::empty({2 * n}, torch::device(gpu0)), part = torch::empty({n}, torch::device(gpu0));
    Tensor x = long_product(start.narrow(0, 0, 256).narrow(1, 0, 256) * 16).new_full({n}, round);
    dt::Pending gathered = all.all_gather_into_async(out, x);
    x = torch::full({n}, -1, torch::device(gpu0));  // would take x's memory if it were free
    dt::Pending reduced = all.reduce_scatter_async(part, torch::full({2 * n}, round, torch::device(gpu0)));
    const Tensor junk = torch::full({2 * n}, -2, torch::device(gpu0));
    { const dt::Pending dropped = all.all_gather_into_async(torch::empty_like(out), x); }
    gathered.wait();
    check.that(out.eq(round).all().item<bool>(), "what was gathered in round " + std::to_string(round));
    reduced.wait();
    check.that(part.eq(2 * round).all().item<bool>(), "what was reduced in round " + std::to_string(round));
  }
  report("streams: 100 rounds of collectives whose inputs were dropped at once");
}

// ---- memory

constexpr int units = 20;
constexpr int64_t width = 707;  // ten million parameters

struct Wide final : torch::nn::Module {
  explicit Wide(int count = units, int64_t side = width) {
    for (int i = 0; i < count; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), dt::Unit<torch::nn::Linear>(side, side)));
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x;
  }
  std::vector<dt::Unit<torch::nn::Linear>> layers;
};

conformance::Job<Wide> adamw_job(int count, int64_t side) {
  conformance::Job<Wide> job;
  job.model = [=] { return std::make_shared<Wide>(count, side); };
  job.optimizer = conformance::maker<dt::AdamW>(dt::AdamWOptions{});
  return job;
}

template <class S, class P>
void memory_row(Checks& check, int ranks, const c10::intrusive_ptr<c10d::Backend>& nccl) {
  std::optional<gpu::World> world;
  if (ranks > 1) world.emplace(ranks, nccl);
  dt::TrainerOptions options = quiet(1, 1);
  options.device = "cuda";
  const int64_t before = allocated();
  int64_t between = 0;
  auto job = adamw_job(units, width);
  fit<S, P>(options, job, rows(3 * ranks, 1, width, width),
            {.step = [&](dt::LoopState&) { between = allocated() - before; }});
  const double p = units * double(width * width + width), unit = p / units;
  const dt::ModelState state = dt::model_state(S::traits, P::traits, ranks);
  double received = 0;
  if (S::traits.shards == dt::Shards::parameters)
    received = unit * 4 * 6;
  else if (S::traits.shards != dt::Shards::nothing && ranks > 1)
    received = unit * 4 * 6;
  const std::string name = std::string(S::name) + " " + std::string(P::name) + ", " + std::to_string(ranks) + " ranks";
  check.that(double(between) <= 1.03 * p * state.total() + (8 << 20) + received, name + ": bytes between steps");
  check.that(double(between) >= 0.97 * p * (state.total() - state.gradients),
             name + ": fewer bytes than the formula's");
  std::printf("memory: %-34s %5.2f bytes per parameter by the formula, %5.2f between steps\n", name.c_str(),
              state.total(), double(between) / p);
}

void memory(Checks& check, const c10::intrusive_ptr<c10d::Backend>& nccl) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {  // cuBLAS allocates its workspace once
    const Tensor x = torch::ones({width, width}, torch::dtype(dtype).device(gpu0));
    (void)torch::matmul(x, x);
  }
  const auto table = [&]<class S>(S) {
    for (const int ranks : {1, 2, 4}) {
      if (ranks > 1 && S::name == dt::SingleDevice::name) continue;
      memory_row<S, dt::FP32>(check, ranks, nccl);
      memory_row<S, dt::BF16Mixed>(check, ranks, nccl);
      memory_row<S, dt::BF16True>(check, ranks, nccl);
      memory_row<S, dt::MasterWeights<dt::BF16>>(check, ranks, nccl);
    }
  };
  table(dt::SingleDevice{});
  table(dt::DDP{});
  table(dt::Sharded<1>{});
  table(dt::Sharded<2>{});
  table(dt::FSDP{});
}

// ---- host time

template <class S>
void host_time(int count, int ranks, const c10::intrusive_ptr<c10d::Backend>& nccl, S strategy = {}) {
  std::optional<gpu::World> world;
  if (ranks > 1) world.emplace(ranks, nccl);
  dt::TrainerOptions options = quiet(1, 1);
  options.device = "cuda";
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  Clock::time_point last{};
  auto job = adamw_job(count, 8);
  fit<S, dt::FP32>(options, job, rows(60 * ranks, 1, 8, 8),
                   {.step =
                        [&](dt::LoopState&) {
                          const auto now = Clock::now();
                          if (last != Clock::time_point{})
                            times.push_back(std::chrono::duration<double, std::micro>(now - last).count());
                          last = now;
                        }},
                   strategy);
  std::nth_element(times.begin(), times.begin() + std::ptrdiff_t(times.size() / 2), times.end());
  std::printf("host: %-10s %d ranks, %4d layers 8x8: %8.0f microseconds a step (median of %zu)\n", S::name.data(),
              ranks, count, times[times.size() / 2], times.size());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[argc - 1] : "";
  if (role == "fit") return fit_on_gpu(argc, argv);
  ::alarm(480);
  Checks check;
  const bool there = torch::cuda::device_count() > 0;
  if (role == "without-gpu") {
    asked_for_a_gpu(check, there);
    parity(check, 1, nullptr, false);
    parity(check, 2, nullptr, false);
    return check.summary();
  }
  std::set_terminate(dt::detail::fail_with_current_exception);
  (void)dt::detail::run_device("cuda", {});
  asked_for_a_gpu(check, true);
  const auto nccl =
      dt::detail::connect_nccl(c10::make_intrusive<c10d::HashStore>(), 0, 1, gpu0, std::chrono::minutes(1));
  collectives(check, nccl);
  streams(check, nccl);
  parity(check, 1, nccl, true);
  parity(check, 2, nccl, true);
  parity(check, 3, nccl, true);
  memory(check, nccl);
  for (const int count : {16, 64, 256}) {
    host_time<dt::SingleDevice>(count, 1, nccl);
    host_time<dt::DDP>(count, 2, nccl);
    host_time<dt::Sharded<2>>(count, 2, nccl);
    host_time<dt::FSDP>(count, 1, nccl, dt::FSDP{{.keep_below = 0}});
    host_time<dt::FSDP>(count, 2, nccl, dt::FSDP{{.keep_below = 0}});
  }
  return check.summary();
}
