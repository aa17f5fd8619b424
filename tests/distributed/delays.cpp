// SPDX-License-Identifier: Apache-2.0
// Collectives over Gloo that are held up: delays change no result, and what can run while a unit computes does.
#include <dovetail/testing/delayed_transport.hpp>

#include "support/conformance_job.hpp"
#include "support/conformance_rank.hpp"

namespace {

using namespace conformance;
using dt::testing::CommunicationLog;
using dt::testing::DelayedTransport;
using Kind = CommunicationLog::Event::Kind;
using std::chrono::milliseconds;

// ---- delays change nothing

/// Several units of odd sizes, one inside another, and parameters outside of them.
struct Block : torch::nn::Module {
  explicit Block(int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        inner(register_module("inner", dt::Unit<torch::nn::Linear>(width, width + 2))),
        back(register_module("back", torch::nn::Linear(width + 2, width))) {}
  Tensor forward(const Tensor& x) { return x + back(torch::tanh(inner(norm(x)))); }

  torch::nn::LayerNorm norm;
  dt::Unit<torch::nn::Linear> inner;
  torch::nn::Linear back;
};

struct Deep : torch::nn::Module {
  Deep() {
    for (int i = 0; i < 3; ++i) blocks.push_back(register_module("block" + std::to_string(i), dt::Unit<Block>(5)));
    head = register_module("head", torch::nn::Linear(5, 3));
  }
  Tensor forward(Tensor x) {
    for (auto& block : blocks) x = block(x);
    return head(x);
  }
  std::vector<dt::Unit<Block>> blocks;
  torch::nn::Linear head{nullptr};
};

template <class S>
void same_under_delays(Rank& me, S strategy, const std::string& what) {
  Job<Deep> job;
  job.optimizer = maker<dt::AdamW>(dt::AdamWOptions{.lr = 0.01});
  const auto data = rows(4 * 4 * me.size());
  for (const bool clips : {false, true})
    for (const int64_t accumulate : {1, 2}) {
      if (!support::long_tests() && (clips + accumulate + me.size()) % 2 != 0) continue;
      dt::TrainerOptions options = quiet(2);
      options.accumulate = accumulate;
      if (clips) options.gradient_clip = dt::clip_norm(0.5);
      const Outcome at_once = conformance::fit<S, dt::FP32>(options, job, data, {}, strategy);
      Outcome late;
      int64_t delayed = 0;
      {
        DelayedTransport transport(
            {.before = milliseconds(2), .wire = std::chrono::microseconds(200), .seed = uint64_t(me.rank() + 1)});
        late = conformance::fit<S, dt::FP32>(options, job, data, {}, strategy);
        delayed = transport.log().collectives();
      }
      const std::string setting = what + (clips ? ", clipped" : "") + ", " + std::to_string(accumulate);
      me.that(delayed > late.steps, setting + ": collectives were delayed");
      me.that(late.steps == 8 / accumulate && at_once.steps == late.steps, setting + ": the steps");
      me.that(at_once.losses == late.losses, setting + ": the losses");
      me.that(at_once.weights.equal(late.weights), setting + ": the weights");
      me.that(me.same_everywhere(late.weights), setting + ": the same weights on all ranks");
    }
}

void random_delays(Rank& me) {
  same_under_delays(me, dt::DDP{}, "ddp");
  same_under_delays(me, dt::DDP{{.reduce_format = dt::Format::bf16}}, "ddp reduced in bf16");
  same_under_delays(me, dt::Sharded<1>{}, "sharded-1");
  same_under_delays(me, dt::Sharded<2>{}, "sharded-2");
  for (const bool reshards : {true, false})
    for (const int prefetch : {0, 2})
      same_under_delays(me, dt::FSDP{{.reshard_after_forward = reshards, .prefetch = prefetch, .keep_below = 0}},
                        "fsdp, prefetch " + std::to_string(prefetch) + (reshards ? "" : ", kept after forward"));
}

// ---- waiting is hidden

constexpr int layers = 4;
constexpr milliseconds compute{8}, wire{8};
CommunicationLog* noted = nullptr;  // of the run under way

/// Computes for a known time, and notes when.
struct Layer : torch::nn::Module {
  Layer(int index, int64_t in, int64_t out)
      : index(index), linear(register_module("linear", torch::nn::Linear(in, out))) {}
  Tensor forward(const Tensor& x) {
    work("forward ");
    const Tensor y = torch::tanh(linear(x));
    if (y.requires_grad())
      y.register_hook([this](const Tensor& gradient) {
        work("backward ");
        return gradient;
      });
    return y;
  }
  void work(const std::string& what) const {
    if (noted) noted->note(what + std::to_string(index));
    std::this_thread::sleep_for(compute);
  }
  int index;
  torch::nn::Linear linear;
};

/// Units of different sizes: what is sent tells whose it is.
struct Chain : torch::nn::Module {
  explicit Chain(int64_t width = 64) {
    for (int i = 0; i < layers; ++i, width += 8)
      units.push_back(register_module("unit" + std::to_string(i), dt::Unit<Layer>(i, width, width + 8)));
  }
  Tensor forward(Tensor x) {
    for (auto& unit : units) x = unit(x);
    return x;
  }
  std::vector<dt::Unit<Layer>> units;
};

constexpr int64_t never = -1;

/// The events of one step, from a place in the log on.
struct Step {
  std::vector<CommunicationLog::Event> events;

  int64_t noted(const std::string& note) const {
    return find(0, [&](const auto& e) { return e.kind == Kind::noted && e.note == note; });
  }
  /// Of the collective over `bytes` that is `nth` of its kind in this step.
  int64_t started(dt::Collective kind, int64_t bytes, int nth = 0) const {
    int64_t at = never;
    do {
      at = find(at + 1,
                [&](const auto& e) { return e.kind == Kind::started && e.collective == kind && e.bytes == bytes; });
    } while (at != never && nth-- > 0);
    return at;
  }
  int64_t waited(int64_t start) const {
    if (start == never) return never;
    const int64_t number = events[std::size_t(start)].number;
    return find(start, [&](const auto& e) { return e.kind == Kind::waited && e.number == number; });
  }
  int64_t count(dt::Collective kind, int64_t bytes) const {
    return std::count_if(events.begin(), events.end(), [&](const auto& e) {
      return e.kind == Kind::started && e.collective == kind && e.bytes == bytes;
    });
  }

 private:
  template <class Is>
  int64_t find(int64_t from, Is is) const {
    const auto found = std::find_if(events.begin() + from, events.end(), is);
    return found == events.end() ? never : found - events.begin();
  }
};

struct Observed {
  std::vector<Step> steps;
  double milliseconds = 0;  ///< of a step, the first left out
  int64_t collectives = 0;  ///< in the last step
};

template <class S>
Observed observe(Rank& me, S strategy, int64_t width = 64) {
  Job<Chain> job;
  job.model = [width] { return std::make_shared<Chain>(width); };
  const int64_t outputs = width + 8 * layers;
  const auto data = rows(4 * 4 * me.size(), 1, width, outputs);
  DelayedTransport transport({.wire = wire});
  noted = &transport.log();
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> times;
  Watch watch;
  watch.step = [&](dt::LoopState&) {
    times.push_back(Clock::now());
    noted->note("step");
  };
  conformance::fit<S, dt::FP32>(quiet(1), job, data, watch, strategy);
  noted = nullptr;
  Observed observed;
  Step step;
  for (auto& event : transport.log().events()) {
    const bool last = event.kind == Kind::noted && event.note == "step";
    step.events.push_back(std::move(event));
    if (last) observed.steps.push_back(std::exchange(step, {}));
  }
  observed.milliseconds =
      std::chrono::duration<double, std::milli>(times.back() - times.front()).count() / double(times.size() - 1);
  for (const auto& event : observed.steps.back().events) observed.collectives += event.kind == Kind::started;
  return observed;
}

void report(const Rank& me, const std::string& what, const Observed& observed) {
  if (me.rank() != 0) return;
  const double parts = 2.0 * layers * double(compute.count()) + double(observed.collectives * wire.count());
  std::cout << what << " on " << me.size() << " ranks: " << observed.milliseconds << " ms a step, " << parts
            << " ms for its parts one after the other, " << double(observed.collectives * wire.count())
            << " of them for its " << observed.collectives << " collectives\n";
}

int64_t bytes_of_unit(const Rank& me, int index) {
  const int64_t in = 64 + 8 * index, out = in + 8, numel = in * out + out;
  return (numel + me.size() - 1) / me.size() * me.size() * 4;
}

void overlap_of_fsdp(Rank& me) {
  using enum dt::Collective;
  for (const int prefetch : {0, 1, 2}) {
    const Observed observed = observe(me, dt::FSDP{{.prefetch = prefetch, .keep_below = 0}});
    report(me, "fsdp, prefetch " + std::to_string(prefetch), observed);
    me.that(observed.steps.size() == 4, "four steps");
    for (std::size_t s = 1; s < observed.steps.size(); ++s) {  // the first one learns the order
      const Step& step = observed.steps[s];
      const auto before = [&](int64_t a, int64_t b, const std::string& what) {
        me.that(a != never && b != never && a < b, "step " + std::to_string(s) + ": " + what);
      };
      for (int i = 0; i < layers; ++i) {
        const std::string unit = std::to_string(i), next = std::to_string(i + 1);
        const bool last = i == layers - 1;  // backward begins with it, so it stays
        me.that(step.count(all_gather, bytes_of_unit(me, i)) == (last ? 1 : 2), "unit " + unit + " is gathered");
        me.that(step.count(all_to_all, bytes_of_unit(me, i)) == 1, "unit " + unit + " is reduced once");
        const int64_t gather = step.started(all_gather, bytes_of_unit(me, i));
        const int64_t again = step.started(all_gather, bytes_of_unit(me, i), 1);
        const int64_t reduce = step.started(all_to_all, bytes_of_unit(me, i));
        before(step.waited(gather), step.noted("forward " + unit), "unit " + unit + " is there in forward");
        if (!last) before(step.waited(again), step.noted("backward " + unit), "unit " + unit + " is there in backward");
        before(step.noted("backward " + unit), reduce, "unit " + unit + " is reduced after its backward");
        for (int ahead = 1; ahead <= prefetch && i - ahead >= 0; ++ahead) {
          const std::string earlier = std::to_string(i - ahead);
          before(gather, step.noted("forward " + earlier),
                 "unit " + unit + " is gathered before unit " + earlier + " computes");
        }
        for (int ahead = 1; ahead <= prefetch && i + ahead < layers; ++ahead) {
          const std::string later = std::to_string(i + ahead);
          before(again, step.noted("backward " + later),
                 "unit " + unit + " is gathered before unit " + later + " goes back");
        }
        if (i > 0) {
          const int64_t computes = step.noted("forward " + std::to_string(i - 1));
          before(computes, step.waited(gather), "unit " + unit + " is waited for after the one before has computed");
          const int64_t backs = step.noted("backward " + std::to_string(i - 1));
          before(reduce, backs, "unit " + unit + " is reduced before unit " + std::to_string(i - 1) + " goes back");
          before(backs, step.waited(reduce), "the reduction of unit " + unit + " is waited for after that");
          if (prefetch == 0) before(computes, gather, "without prefetch nothing is gathered ahead");
        }
        if (i + 1 < layers)
          before(step.noted("backward " + next), step.waited(again),
                 "unit " + unit + " is waited for after unit " + next + " went back");
      }
    }
  }
}

/// The strategies that reduce buckets: the first one is under way while the first layers go back.
void overlap_of_buckets(Rank& me) {
  const auto check = [&](const std::string& what, const Observed& observed, dt::Collective reduction) {
    report(me, what, observed);
    const Step& step = observed.steps.back();
    int64_t reductions = 0, ahead = 0;
    for (std::size_t at = 0; at < step.events.size(); ++at) {
      const auto& event = step.events[at];
      if (event.kind != Kind::started || event.collective != reduction || event.bytes < 1000) continue;
      ++reductions;
      ahead += int64_t(at) < step.noted("backward 0");
    }
    me.that(reductions > 2 && ahead < reductions && 2 * ahead >= reductions,
            what + ": " + std::to_string(ahead) + " of " + std::to_string(reductions) +
                " reductions start before the first layer goes back");
  };
  check("ddp", observe(me, dt::DDP{{.bucket_mb = 1, .first_bucket_mb = 1}}, 512), dt::Collective::all_reduce);
  check("ddp reduced in bf16",
        observe(me, dt::DDP{{.bucket_mb = 1, .first_bucket_mb = 1, .reduce_format = dt::Format::bf16}}, 512),
        dt::Collective::all_to_all);
  check("sharded-1", observe(me, dt::Sharded<1>{{.bucket_mb = 1}}, 512), dt::Collective::all_to_all);
  check("sharded-2", observe(me, dt::Sharded<2>{{.bucket_mb = 1}}, 512), dt::Collective::all_to_all);
}

}  // namespace

int main(int argc, char** argv) {
  return main_of_cases(argc, argv,
                       {{"C-06 C-61 random delays before and after every collective change no bit", random_delays},
                        {"C-50 C-88 gathers and reductions of units run while others compute", overlap_of_fsdp},
                        {"C-50 reductions of buckets run while backward goes on", overlap_of_buckets}},
                       2);
}
