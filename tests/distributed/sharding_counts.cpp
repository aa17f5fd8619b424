// SPDX-License-Identifier: Apache-2.0
// What each strategy sends in a step, counted: against the formulas and against the prediction made before the run. One
// to four ranks, one and two micro-batches.
#include <dovetail/dovetail.hpp>
#include <dovetail/strategy/predict.hpp>

#include <array>
#include <tuple>

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

/// Each tensor moves in the direction of its gradient, whatever its norm: not element-wise.
class NormalizedSGD : public torch::optim::Optimizer {
 public:
  explicit NormalizedSGD(const dt::Parameters& parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(parameters.tensors())},
                  std::make_unique<torch::optim::SGDOptions>(1e-3)) {}
  Tensor step(LossClosure = nullptr) override {
    torch::NoGradGuard no_grad;
    for (auto& group : param_groups())
      for (auto& p : group.params())
        if (p.grad().defined() && p.numel() > 0) p.sub_(p.grad() / (p.grad().norm() + 1e-3), 1e-3);
    return {};
  }
};

struct WholeTensors : Task {
  auto configure_optimizers(const dt::Parameters& parameters) const { return NormalizedSGD(parameters); }
};

/// Weights and biases apart.
struct TwoOptimizers : Task {
  auto configure_optimizers(const dt::Parameters& parameters) const {
    const auto is_matrix = [](const std::string& name) { return name.ends_with("weight"); };
    return std::tuple(dt::SGD(parameters.where(is_matrix), {.lr = 1e-3}),
                      dt::AdamW(parameters.where_not(is_matrix), {.lr = 1e-3}));
  }
};

struct ThreeLosses : Task {
  std::array<Tensor, 3> training_step(Net& net, const dt::Batch& batch, dt::StepContext&) const {
    const Tensor x = net.forward(batch.data).to(torch::kFloat32), loss = torch::mse_loss(x, batch.target);
    return {loss, x.abs().mean(), loss * 0.5};
  }
};

/// Evaluates the loss by itself, several times a step.
struct Closure : Task {
  int64_t* evaluations;
  auto configure_optimizers(const dt::Parameters& parameters) const {
    return torch::optim::LBFGS(parameters.tensors(), torch::optim::LBFGSOptions(1e-3).max_iter(3));
  }
  Tensor training_step(Net& net, const dt::Batch& batch, dt::StepContext& step) const {
    ++*evaluations;
    return Task::training_step(net, batch, step);
  }
};

/// A strategy of one's own that tells what it sends, in a bit more than it needs.
struct OneByOne final : dt::StrategyBase {
  static constexpr std::string_view name = "one-by-one";
  static constexpr dt::StrategyTraits traits{};
  void reduce(dt::StrategyContext& run) {
    for (dt::Slot& slot : run.gradients.slots)
      if (slot.main.defined()) run.communicator().all_reduce(slot.main);  // on one rank autograd keeps it
    run.gradients.summed = true;
  }
  dt::StepTraffic traffic(const dt::StepShape& step) const {
    dt::StepTraffic sent;
    for (const auto& parameter : step.model.parameters())
      sent.counts.plan(Collective::all_reduce, int64_t(parameter.nbytes()), step.ranks);
    return sent;
  }
};

struct Fitted {
  std::vector<dt::CommunicationCounts> steps;  ///< counts of the third and the fourth step
  std::string plan;                            ///< as printed
};

template <class Strategy, class Precision, class Task = ::Task>
Fitted fit(Strategy strategy, int64_t micro_batches, double clip, Precision precision = {}, Task task = {}) {
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
  dt::Trainer<Strategy, Precision> trainer(options, strategy, precision);
  trainer.fit(task, dt::TensorDataset(x, x.narrow(1, 0, 3).contiguous()),
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
  const auto predicted = dt::predict(strategy, {.model = *model,
                                                .precision = Precision::traits,
                                                .ranks = me.ranks(),
                                                .micro_batches = micro_batches,
                                                .norms = clip > 0 ? 1 : 0});
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

/// What the loop adds, and what optimizers and losses change. `clip` 0: none.
template <class Precision = dt::FP32, class Strategy, class Task>
void predicted_and_counted(Counts& me, const std::string& name, Strategy strategy, Task task, int64_t micro_batches,
                           double clip, dt::StepShape step, Precision precision = {}) {
  const std::string what = name + ", " + std::to_string(micro_batches) + " micro-batches";
  step.precision = Precision::traits;
  step.ranks = me.ranks();
  step.micro_batches = micro_batches;
  const auto predicted = dt::predict(strategy, step);
  int64_t evaluations = 0;
  if constexpr (std::is_same_v<Task, Closure>) task.evaluations = &evaluations;
  const auto [steps, plan] = fit<Strategy, Precision>(strategy, micro_batches, clip, precision, task);
  dt::CommunicationCounts expected = predicted.counts;
  if constexpr (std::is_same_v<Task, Closure>) {
    // Three in each step; and who wants to stop.
    me.equal(what + ": evaluations", evaluations, 4 * 3 * micro_batches);
    for (int i = 1; i < 3; ++i)
      for (std::size_t k = 0; k < expected.each.size(); ++k) {
        const dt::Count& each = predicted.counts.each[k];
        expected.each[k] = {expected.each[k].calls + each.calls, expected.each[k].bytes + each.bytes};
      }
    expected.calls *= 3;
    expected.bytes *= 3;
    expected.plan(Collective::all_gather, me.ranks() * 8, me.ranks());
  }
  for (const auto& counted : steps) me.equal(what, counted, expected);
  const std::string line = predicted.text(std::is_same_v<Task, Closure> ? "evaluation of the loss" : "step");
  me.check.that(me.ranks() == 1 || plan.ends_with(line), what + ": the printed plan ends with " + line);
  if (dt::current_ranks().rank == 0) std::printf("%d ranks, %-38s %s", me.ranks(), what.c_str(), line.c_str());
}

void losses_and_optimizers(Counts& me, int64_t m) {
  const auto net = make(), half = make();
  dt::convert_model(*half, torch::kFloat16, false);
  const auto whole = dt::Cut::at_borders;
  predicted_and_counted(me, "sharded-1, tensors whole", dt::Sharded<1>{}, WholeTensors{}, m, 0,
                        {.model = *net, .cut = whole});
  predicted_and_counted(me, "sharded-2, tensors whole, clipped", dt::Sharded<2>{}, WholeTensors{}, m, 1,
                        {.model = *net, .norms = 1, .cut = whole});
  predicted_and_counted(me, "ddp, two optimizers, clipped", dt::DDP{}, TwoOptimizers{}, m, 1,
                        {.model = *net, .norms = 2});
  predicted_and_counted(me, "fsdp, two optimizers, clipped", dt::FSDP{}, TwoOptimizers{}, m, 1,
                        {.model = *net, .norms = 2});
  predicted_and_counted(me, "fsdp, three losses", dt::FSDP{}, ThreeLosses{}, m, 0, {.model = *net});
  predicted_and_counted<dt::Apex<dt::O1>>(me, "ddp x apex-o1", dt::DDP{}, Task{}, m, 0, {.model = *net, .norms = 1});
  predicted_and_counted<dt::Apex<dt::O1>>(me, "ddp x apex-o1, three losses", dt::DDP{}, ThreeLosses{}, m, 0,
                                          {.model = *net, .passes = 3, .norms = 1});
  predicted_and_counted<dt::Apex<dt::O2>>(me, "ddp x apex-o2, three losses", dt::DDP{}, ThreeLosses{}, m, 0,
                                          {.model = *half, .passes = 3, .norms = 1});
  const dt::Apex<dt::O2> literal{{.apex_literal = true}};
  predicted_and_counted(me, "ddp x apex-o2, literal", dt::DDP{}, Task{}, m, 0,
                        {.model = *half, .scale_per_backward = true, .norms = 1}, literal);
  predicted_and_counted(me, "ddp x apex-o2, literal, three losses", dt::DDP{}, ThreeLosses{}, m, 0,
                        {.model = *half, .passes = 3, .scale_per_backward = true, .norms = 1}, literal);
  predicted_and_counted(me, "ddp, LBFGS", dt::DDP{}, Closure{}, m, 0, {.model = *net});
  predicted_and_counted(me, "a strategy of one's own", OneByOne{}, Task{}, m, 0, {.model = *net});
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
  const auto in_bf16 = dt::Format::bf16;
  const auto low = predicted_and_counted(me, "C-34 sharded-2 reduced in bf16",
                                         dt::Sharded<2>{{.bucket_mb = 64, .reduce_format = in_bf16}}, m);
  const auto ddp_low = predicted_and_counted(
      me, "C-34 ddp reduced in bf16", dt::DDP{{.bucket_mb = 64, .first_bucket_mb = 64, .reduce_format = in_bf16}}, m);
  if (me.ranks() == 1) return;

  const int64_t all = 2 * (me.ranks() - 1) * elements * 4 / me.ranks(), padding = 2 * 4 * me.ranks();
  me.check.that(std::abs(ddp.bytes - all - agreement) <= padding * ddp.calls, "ddp sends 2mP");
  me.equal("ddp reduced in bf16 sends 1.5mP:", 2 * (ddp_low.bytes - agreement), 3 * me.share(elements));
  me.equal("ddp reduced in bf16, calls", ddp_low.calls, 3);
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
  predicted_and_counted(me, "ddp, 1 MiB", dt::DDP{{.bucket_mb = 1, .first_bucket_mb = 1}}, m);
  predicted_and_counted(me, "ddp reduced in bf16, 1 MiB",
                        dt::DDP{{.bucket_mb = 1, .first_bucket_mb = 1, .reduce_format = in_bf16}}, m);
  predicted_and_counted(me, "sharded-1 reduced in bf16", dt::Sharded<1>{{.bucket_mb = 1, .reduce_format = in_bf16}}, m);
  predicted_and_counted<dt::FSDP, dt::BF16Mixed>(me, "C-33 fsdp x bf16-mixed, reduced in bf16",
                                                 dt::FSDP{{.keep_below = 0, .reduce_format = in_bf16}}, m, 1.0);
  predicted_and_counted<dt::FSDP, dt::MasterWeights<dt::BF16>>(me, "fsdp x master-bf16, one replica on each rank",
                                                               dt::FSDP{{.keep_below = 0, .shard_group = 1}}, m, 1.0);
  if (me.ranks() == 4)
    predicted_and_counted(
        me, "C-72 fsdp, two replicas",
        dt::FSDP{{.reshard_after_forward = dt::to_ranks(2), .reduce_format = in_bf16, .shard_group = 2}}, m, 1.0);
}

std::string say(const dt::FSDP::Options& o) {
  const auto slices = o.reshard_after_forward.slices();
  std::string text = slices > 1 ? "to_ranks(" + std::to_string(*slices) + ")" : slices ? "no reshard" : "reshard";
  text += ", prefetch " + std::to_string(o.prefetch);
  if (o.keep_below > 0) text += ", small unit in the root";
  if (o.reduce == dt::at_boundary) text += ", at_boundary";
  if (o.reduce_format) text += ", reduced in bf16";
  if (o.shard_group > 0) text += ", replicas on " + std::to_string(o.shard_group);
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
  const auto predicted = dt::predict(
      dt::FSDP{plain}, {.model = *model, .ranks = me.ranks(), .micro_batches = micro_batches, .agrees = false});
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
  const int64_t n = int64_t(units.size()), m = micro_batches, group = options.group_sizes(me.ranks()).shard;
  const int64_t slices = reshards ? options.reshard_after_forward.slices().value_or(int(group)) : 1;
  const int64_t gathered_peak = int64_t(session.fsdp.peak_gathered_bytes());
  const auto whole = [&](int64_t elements) { return (elements + group - 1) / group * group * 4; };
  int64_t all = 0, again = 0, parts = (root + group - 1) / group;
  for (int64_t elements : units) {
    all += me.share(elements, group);
    if (elements != units.back()) again += whole(elements) / slices * (slices - 1);  // in backward, of slices
    parts += (elements + group - 1) / group;
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
  if (slices == group || !reshards)
    me.equal(what + ": peak by formula", gathered_peak, peak);
  else  // with the slices of all others at most
    me.check.that(gathered_peak > peak && gathered_peak <= peak + again / (slices - 1) + whole(units.back()) / slices,
                  what + ": peak with slices, " + std::to_string(gathered_peak) + " over " + std::to_string(peak));
  if (me.ranks() > 1) {
    const int64_t reductions = late ? 1 : m, agreement = m * (me.ranks() - 1) * 8, apart = group > 1;
    const int64_t forwards = reshards || !late ? m : 1;  // how often a unit is gathered for a forward
    const int64_t replicas = me.ranks() / group, wire = options.reduce_format ? 2 : 4;
    const auto gathers = counted.of(Collective::all_gather), reduces = counted.of(Collective::reduce_scatter),
               sums = counted.of(Collective::all_reduce);
    me.equal(what + ": reductions", reduces.calls, apart * reductions * (n + 1));
    me.equal(what + ": bytes reduced", reduces.bytes, reductions * (all + me.share(root, group)) * wire / 4);
    me.equal(what + ": gathers", gathers.calls, m + apart * (1 + forwards * n + (reshards ? m * (n - 1) : 0)));
    me.equal(what + ": bytes gathered", gathers.bytes,
             me.share(root, group) + agreement + forwards * all + (reshards ? m * again : 0));
    me.equal(what + ": sums over replicas", sums.calls, replicas > 1);
    me.equal(what + ": bytes summed over replicas", sums.bytes, 2 * me.share(parts, replicas));
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
      const std::string what = "C-25 replicas on " + std::to_string(group) + " ranks";
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
    near("C-34 ddp and sharded-1 reduced in bf16", bf16(dt::DDP{{.bucket_mb = 1, .first_bucket_mb = 1}}), bf16(dt::Sharded<1>{}), 0);
    if (accumulate == 1) near("C-34 sharded-1 and fsdp reduced in bf16", bf16(dt::Sharded<1>{}), rounded, 0);
    near("reduced in bf16 against ddp", rounded, ddp, 0.02);
    if (me.ranks() > 1) me.check.that(!rounded.equal(trained(dt::FSDP{}, clip, accumulate)), "rounding shows");
  }
  // The first scales overflow fp16: all replicas must skip the same steps.
  int64_t steps = 0, hybrid_steps = 0;
  const Tensor scaled = trained<dt::FSDP, dt::FP16Mixed>(dt::FSDP{}, clip, 1, 30, &steps);
  const Tensor hybrid = trained<dt::FSDP, dt::FP16Mixed>(dt::FSDP{{.shard_group = me.ranks() % 2 ? 1 : me.ranks() / 2}},
                                                         clip, 1, 30, &hybrid_steps);
  me.equal("steps taken by replicas under a loss scaler", hybrid_steps, steps);
  me.check.that(steps > 0 && steps < 8, std::to_string(steps) + " of 8 steps were taken: some, but not all");
  near("replicas under a loss scaler", hybrid, scaled, 1e-2);
}

int rank_main() {
  Counts me(dt::Communicator::connect(dt::current_ranks()));
  values(me);
  for (const int64_t m : {1, 2}) {
    strategies(me, m);
    if (m == 2) losses_and_optimizers(me, m);
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
