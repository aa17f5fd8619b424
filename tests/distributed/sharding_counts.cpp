// SPDX-License-Identifier: Apache-2.0
// What each strategy sends in a step, counted: against the formulas and against the prediction made before the run. One
// to four ranks, one and two micro-batches.
#include <dovetail/dovetail.hpp>
#include <dovetail/strategy/predict.hpp>

#include "support/fsdp_session.hpp"
#include "support/run_self.hpp"

namespace {

namespace dt = dovetail;
using dt::Collective;
using torch::Tensor;

struct BlockImpl : torch::nn::Module {
  torch::nn::Linear wide, narrow;
  BlockImpl(int64_t in, int64_t inside)
      : wide(register_module("wide", torch::nn::Linear(in, inside))),
        narrow(register_module("narrow", torch::nn::Linear(inside, in))) {}
  Tensor forward(const Tensor& x) { return x + narrow(torch::tanh(wide(x))); }
};
TORCH_MODULE(Block);

/// Odd sizes, one small unit, and as it is by default more than two buckets of 1 MiB.
struct Net : torch::nn::Module {
  torch::nn::Linear stem, head;
  dt::Unit<Block> a, b, small, c;
  explicit Net(int64_t width)
      : stem(register_module("stem", torch::nn::Linear(7, width))),
        head(nullptr),
        a(register_module("a", dt::Unit<Block>(width, width + 10))),
        b(register_module("b", dt::Unit<Block>(width, width + 6))),
        small(register_module("small", dt::Unit<Block>(width, 3))),
        c(register_module("c", dt::Unit<Block>(width, width + 100))) {
    head = register_module("head", torch::nn::Linear(width, 3));
  }
  Tensor forward(const Tensor& x) { return head(c(small(b(a(stem(x)))))); }
};

std::shared_ptr<Net> make(int64_t width = 301) {
  torch::manual_seed(3);
  return std::make_shared<Net>(width);
}

constexpr int64_t narrow = 61;  // where one bucket is enough

struct Task {
  double times = 1;  ///< of the loss
  int64_t width = 301;
  auto configure_model() const { return make(width); }
  auto configure_optimizers(const dt::Parameters& parameters) const { return dt::SGD(parameters, {.lr = 1e-3}); }
  Tensor training_step(Net& net, const dt::Batch& batch, dt::StepContext&) const {
    return torch::mse_loss(net.forward(batch.data).to(torch::kFloat32), batch.target) * times;
  }
};

class Counts {
 public:
  explicit Counts(dt::Communicator comm) : comm_(std::move(comm)) {}

  support::Checks check;
  int ranks() const { return comm_.size(); }
  dt::Communicator& comm() { return comm_; }

  void equal(const std::string& what, const dt::CommunicationCounts& got, const dt::CommunicationCounts& expected) {
    for (const auto one : {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
                           Collective::broadcast, Collective::all_to_all, Collective::barrier})
      check.that(got.of(one) == expected.of(one),
                 what + ": " + std::string(dt::name_of(one)) + " " + std::to_string(got.of(one).calls) + " calls, " +
                     std::to_string(got.of(one).bytes) + " bytes; predicted " + std::to_string(expected.of(one).calls) +
                     " and " + std::to_string(expected.of(one).bytes));
    check.that(got == expected, what + ": in all");
  }
  void equal(const std::string& what, int64_t got, int64_t expected) {
    check.that(got == expected, what + " " + std::to_string(got) + ", expected " + std::to_string(expected));
  }

  /// Bytes of elements, padded to a multiple of the ranks, that a rank does not have: m P.
  int64_t share(int64_t elements) const { return share(elements, ranks()); }
  static int64_t share(int64_t elements, int64_t ranks) { return (elements + ranks - 1) / ranks * (ranks - 1) * 4; }

 private:
  dt::Communicator comm_;
};

struct Fitted {
  std::vector<dt::CommunicationCounts> steps;  ///< counts of the third and the fourth step
  std::string plan;                            ///< as printed
};

template <class Strategy, class Precision>
Fitted fit(Strategy strategy, int64_t micro_batches, double clip) {
  const int ranks = dt::current_ranks().world_size;
  torch::manual_seed(5);
  const Tensor x = torch::randn({4 * ranks * micro_batches * 4, 7});
  dt::TrainerOptions options{.max_steps = 4,
                             .batch_size = 4,
                             .accumulate = micro_batches,
                             .shuffle = false,
                             .log_every = 0,
                             .progress = false};
  if (clip > 0) options.gradient_clip = dt::clip_norm(clip);
  std::vector<dt::CommunicationCounts> after;
  Fitted fitted;
  dt::Trainer<Strategy, Precision> trainer(options, strategy);
  trainer.fit(Task{}, dt::TensorDataset(x, x.narrow(1, 0, 3).contiguous()),
              dt::LambdaCallback{.on_train_step_end = [&](dt::LoopState& s) {
                after.push_back(s.run.comm.counts());
                fitted.plan = s.plan;
              }});
  for (std::size_t i = 2; i < 4; ++i) {
    dt::CommunicationCounts step;
    static_cast<dt::Count&>(step) = after[i] - after[i - 1];
    for (std::size_t k = 0; k < step.each.size(); ++k) step.each[k] = after[i].each[k] - after[i - 1].each[k];
    fitted.steps.push_back(step);
  }
  return fitted;
}

template <class Strategy, class Precision = dt::FP32>
dt::CommunicationCounts predicted_and_counted(Counts& me, const std::string& name, Strategy strategy,
                                              int64_t micro_batches, double clip = 0) {
  const auto model = make();
  dt::convert_model(*model, dt::dtype_of(Precision::traits.storage), false);
  const dt::StepShape shape{.ranks = me.ranks(), .micro_batches = micro_batches, .norms = clip > 0 ? 1 : 0};
  const auto predicted = dt::predict(*model, strategy, Precision::traits, shape);
  const auto [steps, plan] = fit<Strategy, Precision>(strategy, micro_batches, clip);
  const std::string what = name + ", " + std::to_string(micro_batches) + " micro-batches";
  for (const auto& step : steps) me.equal(what, step, predicted.counts);
  if (me.ranks() == 1)
    me.equal(what + ", one rank: collectives", steps[0].calls, 0);
  else
    me.check.that(plan.ends_with(predicted.text()), what + ": the printed plan ends with " + predicted.text());
  if (dt::current_ranks().rank == 0)
    std::printf("%d ranks, %-38s %3lld collectives, %9lld bytes; %s", me.ranks(), what.c_str(),
                static_cast<long long>(steps[0].calls), static_cast<long long>(steps[0].bytes),
                predicted.text().c_str());
  return steps[0];
}

/// Against the formulas, with m = (N - 1) / N and P elements of 4 bytes.
void strategies(Counts& me, int64_t m) {
  int64_t elements = 0;
  for (const auto& parameter : make()->parameters()) elements += parameter.numel();
  const int64_t agreement = (me.ranks() - 1) * 8 * dt::agreed_numbers;

  const auto ddp = predicted_and_counted(me, "ddp", dt::DDP{}, m);
  const auto one = predicted_and_counted(me, "sharded-1", dt::Sharded<1>{{.bucket_mb = 64}}, m);
  const auto two = predicted_and_counted(me, "sharded-2", dt::Sharded<2>{{.bucket_mb = 64}}, m);
  const auto late = predicted_and_counted(me, "sharded-2 at_boundary",
                                          dt::Sharded<2>{{.bucket_mb = 64, .reduce = dt::at_boundary}}, m);
  const auto many = predicted_and_counted(me, "sharded-2, 1 MiB", dt::Sharded<2>{{.bucket_mb = 1}}, m);
  const auto low = predicted_and_counted(me, "C-34 sharded-2 reduced in bf16",
                                         dt::Sharded<2>{{.bucket_mb = 64, .reduce_format = dt::Format::bf16}}, m);
  if (me.ranks() == 1) return;

  const int64_t unpadded = 2 * (me.ranks() - 1) * elements * 4 / me.ranks();  // all-reduce needs no padding
  me.check.that(std::abs(ddp.bytes - unpadded - agreement) <= 2 * ddp.calls, "ddp sends 2mP");
  me.equal("sharded-1 sends 2mP:", one.bytes, 2 * me.share(elements) + agreement);
  me.equal("sharded-1 calls", one.calls, 3);
  me.equal("sharded-2 sends (1+M)mP:", two.bytes, (1 + m) * me.share(elements) + agreement);
  me.equal("sharded-2 calls", two.calls, 2 + m);
  me.equal("sharded-2 in bf16 reduces half the bytes:", 2 * low.of(Collective::reduce_scatter).bytes,
           two.of(Collective::reduce_scatter).bytes);
  me.equal("sharded-2 at_boundary sends 2mP:", late.bytes, 2 * me.share(elements) + agreement);
  me.check.that(many.calls > 3 * (1 + m), "several buckets");
  me.check.that(many.bytes - two.bytes <= (many.calls - two.calls) * me.ranks() * 4, "buckets cost their padding only");
}

/// Against the prediction alone.
void further_strategies(Counts& me, int64_t m) {
  const auto in_bf16 = dt::Format::bf16;
  predicted_and_counted(me, "sharded-2, clipped", dt::Sharded<2>{}, m, 1.0);
  predicted_and_counted(me, "fsdp, small units kept", dt::FSDP{}, m);
  predicted_and_counted(me, "fsdp, clipped", dt::FSDP{{.keep_below = 0}}, m, 1.0);
  predicted_and_counted<dt::FSDP, dt::BF16Mixed>(me, "fsdp x bf16-mixed", dt::FSDP{{.keep_below = 0}}, m);
  predicted_and_counted(me, "sharded-1 reduced in bf16", dt::Sharded<1>{{.bucket_mb = 1, .reduce_format = in_bf16}}, m);
  predicted_and_counted<dt::FSDP, dt::BF16Mixed>(me, "C-33 fsdp x bf16-mixed, reduced in bf16",
                                                 dt::FSDP{{.keep_below = 0, .reduce_format = in_bf16}}, m, 1.0);
  predicted_and_counted<dt::FSDP, dt::MasterWeights<dt::BF16>>(me, "fsdp x master-bf16, one copy on each rank",
                                                               dt::FSDP{{.keep_below = 0, .shard_group = 1}}, m, 1.0);
  if (me.ranks() == 4)
    predicted_and_counted(
        me, "C-72 fsdp, two copies",
        dt::FSDP{{.reshard_after_forward = dt::to_ranks(2), .reduce_format = in_bf16, .shard_group = 2}}, m, 1.0);
}

std::string say(const dt::FSDP::Options& o) {
  const auto slices = o.reshard_after_forward.slices();
  std::string text = slices > 1 ? "to_ranks(" + std::to_string(*slices) + ")" : slices ? "keep" : "reshard";
  text += ", prefetch " + std::to_string(o.prefetch);
  if (o.keep_below > 0) text += ", small unit in the root";
  if (o.reduce == dt::at_boundary) text += ", at_boundary";
  if (o.reduce_format) text += ", reduced in bf16";
  if (o.shard_group > 0) text += ", copies on " + std::to_string(o.shard_group);
  if (o.max_gathered > 0) text += ", at most " + std::to_string(o.max_gathered);
  return text;
}

/// FSDP's gathers, reductions and peak, with every unit or without the small one. Returns the most bytes gathered.
int64_t fsdp(Counts& me, dt::FSDP::Options options, int64_t micro_batches) {
  const bool reshards(options.reshard_after_forward), keeps = options.keep_below > 0;
  const bool late = options.reduce == dt::at_boundary;
  const std::string what = "C-41 fsdp, " + say(options) + ", " + std::to_string(micro_batches) + " micro-batches";
  const int64_t width = narrow;
  const auto model = make(width);
  // What no option says (keep nothing) is told by a limit that no unit is below.
  auto plain = options;
  if (!keeps) plain.keep_below = 1;
  const auto predicted =
      dt::predict(*model, dt::FSDP{plain}, {}, {.ranks = me.ranks(), .micro_batches = micro_batches, .agrees = false});
  FsdpSession session(model, me.comm(), plain);
  const auto step = [&] {
    for (int64_t i = 0; i < micro_batches; ++i)
      session.micro_batch(
          i,
          [&] {
            return model->forward(torch::ones({2, 7})).sum();
          },
          micro_batches);
    session.step(1e-3);
  };
  for (int i = 0; i < 2; ++i) step();
  const auto before = me.comm().counts();
  step();
  auto counted = me.comm().counts();
  for (std::size_t k = 0; k < counted.each.size(); ++k) counted.each[k] = counted.each[k] - before.each[k];
  static_cast<dt::Count&>(counted) = static_cast<const dt::Count&>(counted) - before;
  me.equal(what, counted, predicted.counts);
  me.equal(what + ": peak gathered bytes", int64_t(session.fsdp.peak_gathered_bytes()), predicted.peak_gathered_bytes);

  // The same by formula.
  const auto block = [=](int64_t inside) { return 2 * width * inside + width + inside; };
  std::vector<int64_t> units{block(width + 10), block(width + 6), block(3), block(width + 100)};
  int64_t root = 7 * width + width + width * 3 + 3;
  if (keeps) {
    root += units[2];
    units.erase(units.begin() + 2);
  }
  const int64_t n = int64_t(units.size()), m = micro_batches, copy = options.ranks_per_copy(me.ranks());
  const int64_t slices = reshards ? options.reshard_after_forward.slices().value_or(int(copy)) : 1;
  const int64_t gathered_peak = int64_t(session.fsdp.peak_gathered_bytes());
  const auto whole = [&](int64_t elements) { return (elements + copy - 1) / copy * copy * 4; };
  int64_t all = 0, again = 0, parts = (root + copy - 1) / copy;
  for (int64_t elements : units) {
    all += me.share(elements, copy);
    if (elements != units.back()) again += whole(elements) / slices * (slices - 1);  // in backward, of slices
    parts += (elements + copy - 1) / copy;
  }
  int64_t peak = 0;
  for (int64_t first = 0; first < n; ++first) {  // a unit and those ahead of it
    const int64_t most = options.max_gathered > 0 ? options.max_gathered : n;
    int64_t together = whole(root);
    for (int64_t u = first; u < (reshards ? std::min(n, first + std::min<int64_t>(most, 1 + options.prefetch)) : n);
         ++u)
      together += whole(units[std::size_t(u)]);
    peak = std::max(peak, together);
  }
  if (slices == copy || !reshards)
    me.equal(what + ": peak by formula", gathered_peak, peak);
  else  // with the slices of all others at most
    me.check.that(gathered_peak > peak && gathered_peak <= peak + again / (slices - 1) + whole(units.back()) / slices,
                  what + ": peak with slices, " + std::to_string(gathered_peak) + " over " + std::to_string(peak));
  if (me.ranks() > 1) {
    const int64_t reductions = late ? 1 : m, agreement = m * (me.ranks() - 1) * 8, apart = copy > 1;
    const int64_t forwards = reshards || !late ? m : 1;  // how often a unit is gathered for a forward
    const int64_t copies = me.ranks() / copy, wire = options.reduce_format ? 2 : 4;
    const auto gathers = counted.of(Collective::all_gather), reduces = counted.of(Collective::reduce_scatter),
               sums = counted.of(Collective::all_reduce);
    me.equal(what + ": reductions", reduces.calls, apart * reductions * (n + 1));
    me.equal(what + ": bytes reduced", reduces.bytes, reductions * (all + me.share(root, copy)) * wire / 4);
    me.equal(what + ": gathers", gathers.calls, m + apart * (1 + forwards * n + (reshards ? m * (n - 1) : 0)));
    me.equal(what + ": bytes gathered", gathers.bytes,
             me.share(root, copy) + agreement + forwards * all + (reshards ? m * again : 0));
    me.equal(what + ": sums over copies", sums.calls, copies > 1);
    me.equal(what + ": bytes summed over copies", sums.bytes, 2 * me.share(parts, copies));
  }
  session.fsdp.teardown(session.run);
  return gathered_peak;
}

/// Trained parameters, whole.
template <class Strategy, class Precision = dt::FP32>
Tensor trained(Strategy strategy, double clip, int64_t accumulate, double times = 1e3, int64_t* steps = nullptr) {
  const int ranks = dt::current_ranks().world_size;
  torch::manual_seed(5);
  const Tensor x = torch::randn({4 * ranks * accumulate * 8, 7});
  dt::TrainerOptions options{.max_steps = steps ? -1 : 4,
                             .batch_size = 4,
                             .accumulate = accumulate,
                             .shuffle = false,
                             .log_every = 0,
                             .deterministic = true,
                             .progress = false};
  if (clip > 0) options.gradient_clip = dt::clip_norm(clip);
  const auto result = dt::Trainer<Strategy, Precision>(options, strategy)
                          .fit(Task{times, narrow}, dt::TensorDataset(x, x.narrow(1, 0, 3).contiguous()));
  if (steps) *steps = result.steps;
  torch::NoGradGuard no_grad;
  std::vector<Tensor> flat;
  for (const auto& parameter : result.model->parameters()) flat.push_back(parameter.detach().reshape({-1}));
  return torch::cat(flat);
}

/// Norms, loss scales and masters of a model that is sharded in groups of ranks are those of the whole: clipped steps
/// under it are those of DDP. Sharded and FSDP round the same gradients to the same bits.
void values(Counts& me) {
  using dt::Format;
  const double clip = 10;  // every step is clipped: a norm that is wrong by a factor scales it by that factor
  const Tensor start = [] {
    std::vector<Tensor> flat;
    for (const auto& parameter : make(narrow)->parameters()) flat.push_back(parameter.detach().reshape({-1}));
    return torch::cat(flat);
  }();
  // As a part of the way that training goes.
  const auto near = [&](const std::string& what, const Tensor& got, const Tensor& expected, double tolerance) {
    const double part = ((got - expected).norm() / (expected - start).norm()).item<double>();
    me.check.that(part <= tolerance, what + " differs by " + std::to_string(part) + " of the way");
  };
  for (const int64_t accumulate : {1, 2}) {
    const Tensor ddp = trained(dt::DDP{}, clip, accumulate);
    const double moved = (ddp - start).norm().item<double>();
    me.check.that(moved > 0.02 && moved < 0.041, "four clipped steps move by " + std::to_string(moved));
    for (int group = 1; group <= me.ranks(); ++group) {
      if (me.ranks() % group != 0) continue;
      const std::string what = "C-25 copies on " + std::to_string(group) + " ranks";
      const Tensor hybrid = trained(dt::FSDP{{.keep_below = 4000, .shard_group = group}}, clip, accumulate);
      near(what + " against ddp", hybrid, ddp, 1e-3);
      near(what + ", again", trained(dt::FSDP{{.keep_below = 4000, .shard_group = group}}, clip, accumulate), hybrid,
           0);
    }
    const auto bf16 = [&](auto strategy) {
      strategy.options.reduce_format = Format::bf16;
      return trained(strategy, clip, accumulate);
    };
    const Tensor rounded = bf16(dt::FSDP{});
    near("C-34 sharded-2 and fsdp reduced in bf16", bf16(dt::Sharded<2>{}), rounded, 0);
    if (accumulate == 1) near("C-34 sharded-1 and fsdp reduced in bf16", bf16(dt::Sharded<1>{}), rounded, 0);
    near("reduced in bf16 against ddp", rounded, ddp, 0.02);
    if (me.ranks() > 1) me.check.that(!rounded.equal(trained(dt::FSDP{}, clip, accumulate)), "rounding shows");
  }
  // The first scales overflow fp16: all copies must skip the same steps.
  int64_t steps = 0, hybrid_steps = 0;
  const Tensor scaled = trained<dt::FSDP, dt::FP16Mixed>(dt::FSDP{}, clip, 1, 30, &steps);
  const Tensor hybrid = trained<dt::FSDP, dt::FP16Mixed>(dt::FSDP{{.shard_group = me.ranks() % 2 ? 1 : me.ranks() / 2}},
                                                         clip, 1, 30, &hybrid_steps);
  me.equal("steps taken by copies under a loss scaler", hybrid_steps, steps);
  me.check.that(steps > 0 && steps < 8, std::to_string(steps) + " of 8 steps were taken: some, but not all");
  near("copies under a loss scaler", hybrid, scaled, 1e-2);
}

int rank_main() {
  Counts me(dt::Communicator::connect(dt::current_ranks()));
  values(me);
  for (const int64_t m : {1, 2}) {
    strategies(me, m);
    if (support::long_tests() || (m + me.ranks()) % 2 == 0) further_strategies(me, m);
    for (const bool reshard : {true, false})
      for (const int prefetch : {0, 1, 2})
        for (const int64_t keep_below : {0, 4000})
          for (const auto reduce : {dt::every_micro_batch, dt::at_boundary}) {
            // A third of them on each number of ranks, in which every two values meet.
            const int64_t place = reshard + prefetch + (keep_below > 0) + (reduce == dt::at_boundary) + m;
            if (!support::long_tests() && (place + me.ranks()) % 3 != 0) continue;
            fsdp(me,
                 {.reshard_after_forward = reshard, .prefetch = prefetch, .keep_below = keep_below, .reduce = reduce},
                 m);
          }
    for (int group = 1; group <= me.ranks(); ++group)
      for (int k = 1; me.ranks() % group == 0 && k <= group; ++k)
        for (const auto reduce : {dt::every_micro_batch, dt::at_boundary}) {
          if (group % k != 0) continue;
          if (!support::long_tests() && (group + k + (reduce == dt::at_boundary) + m) % 2 != 0) continue;
          fsdp(me,
               {.reshard_after_forward = dt::to_ranks(k),
                .prefetch = k - 1,
                .keep_below = 0,
                .reduce = reduce,
                .reduce_format = group % 2 ? std::nullopt : std::optional(dt::Format::bf16),
                .shard_group = group},
               m);
        }
    std::vector<int64_t> peaks;
    for (const int most : {1, 2, 3, 0})
      peaks.push_back(fsdp(me, {.prefetch = 3, .keep_below = 0, .max_gathered = most}, m));
    for (std::size_t i = 1; i < peaks.size(); ++i) me.check.that(peaks[i - 1] < peaks[i], "limits bound the peak");
  }
  const int code = me.check.summary();
  me.comm().barrier();
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    ::alarm(400);
    const dt::Launch launch(argc, argv);
    return rank_main();
  }
  ::setenv("OMP_NUM_THREADS", "1", 1);
  support::Checks check;
  for (const char* ranks : {"1", "2", "3", "4"}) {
    const auto run = support::run_self({"--ranks", ranks, "-"}, {}, 400);
    check.ended(run, 0, std::string(ranks) + " ranks");
    std::cout << run.output;
  }
  return check.summary();
}
