// SPDX-License-Identifier: Apache-2.0
// What each strategy sends in a step, counted: against the formulas and against the prediction made before the run. Two
// and three ranks, one and two micro-batches.
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

/// Odd sizes, one small unit, and more than two buckets of 1 MiB.
struct Net : torch::nn::Module {
  torch::nn::Linear stem = register_module("stem", torch::nn::Linear(7, 301));
  dt::Unit<Block> a = register_module("a", dt::Unit<Block>(301, 311));
  dt::Unit<Block> b = register_module("b", dt::Unit<Block>(301, 307));
  dt::Unit<Block> small = register_module("small", dt::Unit<Block>(301, 3));
  dt::Unit<Block> c = register_module("c", dt::Unit<Block>(301, 401));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(301, 3));
  Tensor forward(const Tensor& x) { return head(c(small(b(a(stem(x)))))); }
};

std::shared_ptr<Net> make() {
  torch::manual_seed(3);
  return std::make_shared<Net>();
}

struct Task {
  auto configure_model() const { return make(); }
  auto configure_optimizers(const dt::Parameters& parameters) const { return dt::SGD(parameters, {.lr = 1e-3}); }
  Tensor training_step(Net& net, const dt::Batch& batch, dt::StepContext&) const {
    return torch::mse_loss(net.forward(batch.data), batch.target);
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
  int64_t share(int64_t elements) const { return (elements + ranks() - 1) / ranks() * (ranks() - 1) * 4; }

 private:
  dt::Communicator comm_;
};

/// Counts of the second and the third step of a fit.
template <class Strategy, class Precision>
std::vector<dt::CommunicationCounts> fit(Strategy strategy, int64_t micro_batches, double clip) {
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
  std::vector<dt::CommunicationCounts> after, steps;
  dt::Trainer<Strategy, Precision> trainer(options, strategy);
  trainer.fit(Task{}, dt::TensorDataset(x, x.narrow(1, 0, 3).contiguous()),
              dt::LambdaCallback{.on_train_step_end = [&](dt::LoopState& s) { after.push_back(s.run.comm.counts()); }});
  for (std::size_t i = 2; i < 4; ++i) {
    dt::CommunicationCounts step;
    static_cast<dt::Count&>(step) = after[i] - after[i - 1];
    for (std::size_t k = 0; k < step.each.size(); ++k) step.each[k] = after[i].each[k] - after[i - 1].each[k];
    steps.push_back(step);
  }
  return steps;
}

template <class Strategy, class Precision = dt::FP32>
dt::CommunicationCounts predicted_and_counted(Counts& me, const std::string& name, Strategy strategy,
                                              int64_t micro_batches, double clip = 0) {
  const auto model = make();
  const dt::StepShape shape{.ranks = me.ranks(), .micro_batches = micro_batches, .norms = clip > 0 ? 1 : 0};
  const auto predicted = dt::predict(*model, strategy, Precision::traits, shape);
  const auto steps = fit<Strategy, Precision>(strategy, micro_batches, clip);
  const std::string what = name + ", " + std::to_string(micro_batches) + " micro-batches";
  for (const auto& step : steps) me.equal(what, step, predicted.counts);
  if (me.ranks() == 1) me.equal(what + ", one rank: collectives", steps[0].calls, 0);
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
  const bool alone = me.ranks() == 1;

  const auto ddp = predicted_and_counted(me, "ddp", dt::DDP{}, m);
  const auto one = predicted_and_counted(me, "sharded-1", dt::Sharded<1>{{.bucket_mb = 64}}, m);
  const auto two = predicted_and_counted(me, "sharded-2", dt::Sharded<2>{{.bucket_mb = 64}}, m);
  const auto late = predicted_and_counted(me, "sharded-2 at_boundary",
                                          dt::Sharded<2>{{.bucket_mb = 64, .reduce = dt::at_boundary}}, m);
  const auto many = predicted_and_counted(me, "sharded-2, 1 MiB", dt::Sharded<2>{{.bucket_mb = 1}}, m);
  predicted_and_counted(me, "sharded-2, clipped", dt::Sharded<2>{}, m, 1.0);
  predicted_and_counted(me, "fsdp, small units kept", dt::FSDP{}, m);
  predicted_and_counted(me, "fsdp, clipped", dt::FSDP{{.keep_below = 0}}, m, 1.0);
  predicted_and_counted<dt::FSDP, dt::BF16Mixed>(me, "fsdp x bf16-mixed", dt::FSDP{{.keep_below = 0}}, m);
  if (alone) return;

  const int64_t unpadded = 2 * (me.ranks() - 1) * elements * 4 / me.ranks();  // all-reduce needs no padding
  me.check.that(std::abs(ddp.bytes - unpadded - agreement) <= 2 * ddp.calls, "ddp sends 2mP");
  me.equal("sharded-1 sends 2mP:", one.bytes, 2 * me.share(elements) + agreement);
  me.equal("sharded-1 calls", one.calls, 3);
  me.equal("sharded-2 sends (1+M)mP:", two.bytes, (1 + m) * me.share(elements) + agreement);
  me.equal("sharded-2 calls", two.calls, 2 + m);
  me.equal("sharded-2 at_boundary sends 2mP:", late.bytes, 2 * me.share(elements) + agreement);
  me.check.that(many.calls > 3 * (1 + m), "several buckets");
  me.check.that(many.bytes - two.bytes <= (many.calls - two.calls) * me.ranks() * 4, "buckets cost their padding only");
}

/// FSDP's gathers, reductions and peak, with every unit or without the small one.
void fsdp(Counts& me, dt::FSDP::Options options, int64_t micro_batches) {
  const bool reshards(options.reshard_after_forward), keeps = options.keep_below > 0;
  const bool late = options.reduce == dt::at_boundary;
  const std::string what = std::string("fsdp, ") + (reshards ? "reshard" : "keep") + ", prefetch " +
                           std::to_string(options.prefetch) + (keeps ? ", small unit in the root" : "") +
                           (late ? ", at_boundary, " : ", ") + std::to_string(micro_batches) + " micro-batches";
  const auto model = make();
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
  const auto block = [](int64_t in, int64_t inside) { return 2 * in * inside + in + inside; };
  std::vector<int64_t> units{block(301, 311), block(301, 307), block(301, 3), block(301, 401)};
  int64_t root = 7 * 301 + 301 + 301 * 3 + 3;
  if (keeps) {
    root += units[2];
    units.erase(units.begin() + 2);
  }
  const int64_t n = int64_t(units.size()), m = micro_batches;
  int64_t all = 0, peak = 0;
  std::vector<int64_t> shares;
  for (int64_t elements : units) {
    shares.push_back(me.share(elements));
    all += shares.back();
  }
  const auto whole = [&](int64_t elements) { return (elements + me.ranks() - 1) / me.ranks() * me.ranks() * 4; };
  for (int64_t first = 0; first < n; ++first) {  // a unit and those ahead of it
    int64_t together = whole(root);
    for (int64_t u = first; u < (reshards ? std::min(n, first + 1 + options.prefetch) : n); ++u)
      together += whole(units[std::size_t(u)]);
    peak = std::max(peak, together);
  }
  me.equal(what + ": peak by formula", int64_t(session.fsdp.peak_gathered_bytes()), peak);
  if (me.ranks() > 1) {
    const int64_t reductions = late ? 1 : m, agreement = m * (me.ranks() - 1) * 8;
    const int64_t forwards = reshards || !late ? m : 1;  // how often a unit is gathered for a forward
    const auto gathers = counted.of(Collective::all_gather), reduces = counted.of(Collective::reduce_scatter);
    me.equal(what + ": reductions", reduces.calls, reductions * (n + 1));
    me.equal(what + ": bytes reduced", reduces.bytes, reductions * (all + me.share(root)));
    me.equal(what + ": gathers", gathers.calls, 1 + m + forwards * n + (reshards ? m * (n - 1) : 0));
    me.equal(what + ": bytes gathered", gathers.bytes,
             me.share(root) + agreement + forwards * all + (reshards ? m * (all - shares.back()) : 0));
  }
  session.fsdp.teardown(session.run);
}

int rank_main() {
  Counts me(dt::Communicator::connect(dt::current_ranks()));
  for (const int64_t m : {1, 2}) {
    strategies(me, m);
    for (const bool reshard : {true, false})
      for (const int prefetch : {0, 1, 2})
        for (const int64_t keep_below : {0, 4000})
          for (const auto reduce : {dt::every_micro_batch, dt::at_boundary})
            fsdp(me,
                 {.reshard_after_forward = reshard, .prefetch = prefetch, .keep_below = keep_below, .reduce = reduce},
                 m);
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
  for (const char* ranks : {"1", "2", "3"}) {
    const auto run = support::run_self({"--ranks", ranks, "-"}, {}, 400);
    check.ended(run, 0, std::string(ranks) + " ranks");
    std::cout << run.output;
  }
  return check.summary();
}
