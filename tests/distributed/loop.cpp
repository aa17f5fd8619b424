// SPDX-License-Identifier: Apache-2.0
// What only shows with several ranks: they fail together, agree on what to do with gradients that some do not have, and
// skip together.
#include <dovetail/dovetail.hpp>

#include <functional>
#include <iostream>

#include "support/run_self.hpp"

namespace {

namespace dt = dovetail;
using dt::ExitCode;
using support::run_self;
using torch::Tensor;

struct Net : torch::nn::Module {
  Net()
      : in(register_module("in", dt::Unit<torch::nn::Linear>(3, 4))),
        out(register_module("out", dt::Unit<torch::nn::Linear>(4, 1))),
        extra(register_module("extra", dt::Unit<torch::nn::Linear>(3, 1))),
        spare(register_parameter("spare", torch::ones({2}))) {}

  dt::Unit<torch::nn::Linear> in, out, extra;
  Tensor spare;
};

/// The Task, and a data set whose rows may be refused.
struct Job {
  enum class Part { used, unused, times_zero };

  std::function<void(Net&)> change = [](Net&) {};                                // after the model is built
  std::function<void(Net&, int64_t step)> before = [](Net&, int64_t) {};         // a training step
  std::function<Part(int64_t step)> extra = [](int64_t) { return Part::used; };  // the unit on this rank
  std::function<Part(int64_t step)> spare = [](int64_t) { return Part::used; };  // the parameter outside of units
  std::function<Tensor(Tensor, dt::StepContext&)> then = [](Tensor loss, dt::StepContext&) { return loss; };
  double lr = 0.02;
  double beta2 = 0.999;
  std::string leaves_out;
  std::function<void(const std::string& where)> at = [](const std::string&) {};

  auto configure_model() {
    at("configure_model");
    auto net = std::make_shared<Net>();
    change(*net);
    return net;
  }
  auto configure_optimizers(const dt::Parameters& p) {
    at("configure_optimizers");
    const auto kept = p.where([this](const std::string& name) { return leaves_out.empty() || name != leaves_out; });
    return dt::AdamW(kept, {.lr = lr, .betas = {0.9, beta2}, .weight_decay = 0.2});
  }
  Tensor training_step(Net& net, const dt::Batch& batch, dt::StepContext& step) {
    if (step.step() == 2) at("training_step");
    before(net, step.step());
    Tensor out = net.out(torch::tanh(net.in(batch.data)));
    const auto add = [&](Part part, auto value) {
      if (part == Part::used) out = out + value();
      if (part == Part::times_zero) out = out + value() * 0;
    };
    add(extra(step.step()), [&] { return net.extra(batch.data); });
    add(spare(step.step()), [&] { return (net.spare * batch.data.slice(1, 0, 2)).sum(1, true); });
    return then(torch::mse_loss(out, batch.target), step);
  }
  void validation_step(Net& net, const dt::Batch& batch, dt::StepContext& step) {
    at("validation_step");
    step.log("loss", torch::mse_loss(net.out(torch::tanh(net.in(batch.data))), batch.target));
    if (extra(step.step()) == Part::used) net.extra(batch.data);  // what some ranks leave out, others still gather
  }
};

struct Rows {
  Tensor x, y;
  std::function<void(const std::string&)> at = [](const std::string&) {};
  explicit Rows(uint64_t seed) {
    auto generator = at::detail::createCPUGenerator(seed);
    x = torch::randn({36, 3}, generator, torch::kFloat32);
    y = torch::randn({36, 1}, generator, torch::kFloat32);
  }
  int64_t size() const { return x.size(0); }
  void fetch(std::span<const int64_t> indices, dt::Batch& out) const {
    at("fetch");
    const Tensor rows = torch::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
    out.data = x.index_select(0, rows);
    out.target = y.index_select(0, rows);
  }
};
using Data = dt::SplitData<Rows>;

struct Outcome {
  int64_t steps = 0;
  Tensor weights;
};

Tensor flat(const torch::nn::Module& module) {
  std::vector<Tensor> all;
  for (const Tensor& parameter : module.parameters()) all.push_back(parameter.detach().clone().flatten());
  return torch::cat(all);
}

template <class Strategy, class Precision, class Task>
Outcome fit_with(const dt::TrainerOptions& options, Task& task, const Data& data, Precision precision = {}) {
  const auto result = dt::Trainer<Strategy, Precision>(options, Strategy{}, precision).fit(task, data);
  return {result.steps, flat(*result.model)};
}

template <class Precision>
Outcome fit_by_name(const std::string& strategy, const dt::TrainerOptions& options, Job& job, const Data& data,
                    Precision precision = {}) {
  if (strategy == "ddp") return fit_with<dt::DDP>(options, job, data, precision);
  if (strategy == "sharded-1") return fit_with<dt::Sharded<1>>(options, job, data, precision);
  if (strategy == "sharded-2") return fit_with<dt::Sharded<2>>(options, job, data, precision);
  return fit_with<dt::FSDP>(options, job, data, precision);
}

dt::TrainerOptions some_steps() {
  return {.max_epochs = 2,
          .batch_size = 3,
          .shuffle = false,
          .sanity_validation_batches = 0,
          .validate_every = 2,
          .progress = false};
}

Outcome fit(const std::string& strategy, const dt::TrainerOptions& options, Job job) {
  const Data data{Rows(1), Rows(2)};
  return fit_by_name<dt::FP32>(strategy, options, job, data);
}

/// Counts what does not hold on this rank.
class Expectations {
 public:
  void that(bool holds, const std::string& what) {
    ++checked_;
    if (holds) return;
    ++wrong_;
    std::cout << "WRONG on rank " + std::to_string(dt::current_ranks().rank) + ": " + what + "\n" << std::flush;
  }

  /// `body` throws an Error of this code that says all of `parts`.
  void error(ExitCode code, const std::vector<std::string>& parts, const std::string& what,
             const std::function<void()>& body) {
    try {
      body();
      that(false, what + ": no error");
    } catch (const dt::Error& error) {
      const std::string text = error.what();
      that(error.code() == code, what + ": code " + std::to_string(int(error.code())) + ", " + text);
      for (const auto& part : parts)
        that(text.find(part) != std::string::npos, what + " does not say \"" + part + "\": " + text);
    }
  }

  int finish() const {
    std::cout << std::to_string(checked_) + " held\n" << std::flush;
    return wrong_ == 0 ? 0 : 1;
  }

 private:
  int checked_ = 0, wrong_ = 0;
};

double apart(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>();
}

bool same_on_all_ranks(dt::Communicator& all, const Tensor& weights) {
  std::string bits(reinterpret_cast<const char*>(weights.const_data_ptr()), weights.nbytes());
  const auto each = dt::all_gather_text(all, bits);
  return std::all_of(each.begin(), each.end(), [&](const std::string& other) { return other == each[0]; });
}

struct Way {
  std::string strategy;
  bool deterministic = false;
  std::string text() const { return strategy + (deterministic ? ", deterministic" : ""); }
};

/// A part of the model that some ranks use, or all, or none.
void check_unused(Expectations& expect, dt::Communicator& all, const Way& way) {
  using Part = Job::Part;
  const int rank = all.rank();
  auto options = some_steps();
  options.deterministic = way.deterministic;
  struct Case {
    std::string text;
    std::function<bool(int64_t step)> used;  // on this rank
  };
  const std::vector<Case> some{
      {"by rank 0 alone", [=](int64_t) { return rank == 0; }},
      {"by all but rank 0", [=](int64_t) { return rank != 0; }},
      {"by one rank after the other", [=, n = all.size()](int64_t step) { return step % n == rank; }}};
  for (const int64_t accumulate : {1, 2})
    for (const bool unit : {true, false}) {
      if (!support::long_tests() && (accumulate + unit + way.deterministic + all.size()) % 2 != 0) continue;
      options.accumulate = accumulate;
      const auto job = [&](std::function<bool(int64_t)> used, Part otherwise) {
        Job job;
        (unit ? job.extra : job.spare) = [=](int64_t step) { return used(step) ? Part::used : otherwise; };
        return job;
      };
      const std::string names = unit ? "'extra.weight', 'extra.bias'" : "the parameter 'spare'";
      const std::string where =
          "C-98 P46 " + way.text() + ", accumulate " + std::to_string(accumulate) + ", " + names + " used ";
      for (const Case& c : some) {
        options.find_unused = false;
        expect.error(ExitCode::user_code, {names + " got no gradient on some ranks at step 0"}, where + c.text,
                     [&] { fit(way.strategy, options, job(c.used, Part::unused)); });
        options.find_unused = true;
        const Outcome left_out = fit(way.strategy, options, job(c.used, Part::unused));
        const Outcome zero = fit(way.strategy, options, job(c.used, Part::times_zero));
        expect.that(apart(left_out.weights, zero.weights) < 1e-7, where + c.text + " counts as zero elsewhere");
        expect.that(same_on_all_ranks(all, left_out.weights), where + c.text + ": ranks part ways");
      }
      const auto nobody = [](int64_t) { return false; };
      options.find_unused = false;
      expect.error(ExitCode::user_code, {names + " got no gradient at step 0"}, where + "by nobody",
                   [&] { fit(way.strategy, options, job(nobody, Part::unused)); });
      options.find_unused = true;
      const Outcome skipped = fit(way.strategy, options, job(nobody, Part::unused));
      Job frozen = job(nobody, Part::unused);
      frozen.change = [=](Net& net) {
        for (const auto& item : net.named_parameters())
          if (item.key().starts_with(unit ? "extra" : "spare")) Tensor(item.value()).requires_grad_(false);
      };
      options.find_unused = false;
      expect.that(apart(skipped.weights, fit(way.strategy, options, frozen).weights) < 1e-7,
                  where + "by nobody: as if it were frozen");
      expect.that(same_on_all_ranks(all, skipped.weights), where + "by nobody: ranks part ways");
    }
}

void check_disagreement(Expectations& expect, dt::Communicator& all, const Way& way) {
  const int rank = all.rank(), last = all.size() - 1;
  auto options = some_steps();
  options.deterministic = way.deterministic;
  // Other weights on one rank: rank 0's go to all.
  const Outcome plain = fit(way.strategy, options, {});
  for (const int other : {0, last}) {
    Job job;
    job.change = [=](Net& net) {
      torch::NoGradGuard no_grad;
      if (rank == other) net.out->weight.mul_(2);
    };
    Job all_doubled;
    all_doubled.change = [](Net& net) {
      torch::NoGradGuard no_grad;
      net.out->weight.mul_(2);
    };
    const Tensor expected = other == 0 ? fit(way.strategy, options, all_doubled).weights : plain.weights;
    expect.that(apart(fit(way.strategy, options, job).weights, expected) < 1e-6,
                way.text() + ": rank 0's weights are everybody's");
  }
  Job frozen;
  frozen.change = [=](Net& net) {
    if (rank == last) net.in->bias.requires_grad_(false);
  };
  expect.error(ExitCode::ranks_disagree,
               {"rank " + std::to_string(last) + " built another model than rank 0", "in.bias"},
               way.text() + ": frozen on one rank", [&] { fit(way.strategy, options, frozen); });
  // Frozen later, on one rank: a whole unit, a part of one, what is outside of units.
  for (const std::string prefix : {"extra", "in.bias", "spare"})
    for (const int64_t accumulate : {1, 2}) {
      Job later;
      later.before = [=](Net& net, int64_t step) {
        for (const auto& item : net.named_parameters())
          if (item.key().starts_with(prefix)) Tensor(item.value()).requires_grad_(rank != last || step < 2);
      };
      std::string others;
      for (int r = 0; r < last; ++r) others += (r == 0 ? "rank " : ", rank ") + std::to_string(r);
      options.accumulate = accumulate;
      expect.error(ExitCode::ranks_disagree,
                   {"the parameter '" + prefix,
                    "' is frozen on rank " + std::to_string(last) + " and not on " + others + " at step 2: change"},
                   way.text() + ": " + prefix + " frozen on one rank at step 2",
                   [&] { fit(way.strategy, options, later); });
    }
  for (const int64_t accumulate : {1, 2}) {  // in one micro-batch of a window only
    int64_t calls = 0;
    Job once;
    once.before = [&](Net& net, int64_t) {
      const bool now = calls++ == 2 && rank == last;
      net.in->weight.requires_grad_(!now);
    };
    options.accumulate = accumulate;
    expect.error(ExitCode::ranks_disagree, {"'in.weight' is frozen on rank " + std::to_string(last)},
                 way.text() + ": frozen for one micro-batch", [&] { fit(way.strategy, options, once); });
  }
  for (const auto& [accumulate, at] : {std::pair{2, 0}, {2, 3}, {1, 0}, {1, 2}}) {
    Job runs;
    runs.then = [at = at, calls = 0](Tensor loss, dt::StepContext&) mutable {
      if (calls++ == at) loss.backward({}, /*retain_graph=*/true);
      return loss;
    };
    options.accumulate = accumulate;
    expect.error(ExitCode::user_code, {"' has a gradient before the run's own backward: training_step must return"},
                 way.text() + ": backward in training_step, accumulate " + std::to_string(accumulate) +
                     ", micro-batch " + std::to_string(at),
                 [&] { fit(way.strategy, options, runs); });
  }
  Job logs;
  logs.then = [=](Tensor loss, dt::StepContext& step) {
    step.log(rank == last ? "losses" : "loss", loss);
    return loss;
  };
  expect.error(ExitCode::ranks_disagree, {"ranks logged different metrics", "'losses '"},
               way.text() + ": other names are logged", [&] { fit(way.strategy, options, logs); });
  Job nan;
  nan.then = [=](Tensor loss, dt::StepContext& step) {
    return rank == last && step.step() == 3 ? loss * std::nan("") : loss;
  };
  expect.error(ExitCode::numeric, {"the loss is NaN at step 3", "on rank " + std::to_string(last)},
               way.text() + ": NaN on one rank", [&] { fit(way.strategy, options, nan); });
}

/// Options, data and optimizers must be the same on every rank: found before the first step, by name.
void check_other_runs(Expectations& expect, dt::Communicator& all, const std::string& strategy) {
  const int last = all.size() - 1;
  const bool other = all.rank() == last;
  const auto refused = [&](const std::string& what, const std::string& line, auto change) {
    auto options = some_steps();
    Data data{Rows(1), Rows(2)};
    Job job;
    bool began = false;
    job.then = [&](Tensor loss, dt::StepContext&) {
      began = true;
      return loss;
    };
    if (other) change(options, data, job);
    expect.error(ExitCode::ranks_disagree, {"rank " + std::to_string(last), line, "where rank 0 has"},
                 strategy + ": other " + what, [&] { fit_by_name<dt::FP32>(strategy, options, job, data); });
    expect.that(!began, strategy + ": other " + what + " was found before the first step");
  };
  refused("seed", "'seed = 9'", [](auto& options, auto&, auto&) { options.seed = 9; });
  refused("batch size", "'batch_size = 2'", [](auto& options, auto&, auto&) { options.batch_size = 2; });
  refused("clipping", "'gradient_clip = norm'",
          [](auto& options, auto&, auto&) { options.gradient_clip = dt::clip_norm(1); });
  refused("epochs", "'max_epochs = 3'", [](auto& options, auto&, auto&) { options.max_epochs = 3; });
  refused("data", "'training samples = 35'", [](auto&, auto& data, auto&) {
    Rows shorter(1);
    shorter.x = shorter.x.slice(0, 0, 35);
    data = Data{shorter, Rows(2)};
  });
  refused("learning rate", "group 0: lr 0.25'", [](auto&, auto&, auto& job) { job.lr = 0.25; });
  refused("second moment", "group 0: beta2 0.5' where rank 0 has 'dovetail::AdamW 0, group 0: beta2 0.999'",
          [](auto&, auto&, auto& job) { job.beta2 = 0.5; });
  refused("optimizer", "'dovetail::AdamW 0, group 0: in.weight' where rank 0 has 'dovetail::AdamW 0, group 0: spare'",
          [](auto&, auto&, auto& job) { job.leaves_out = "spare"; });
}

/// Policies' own options are options too.
void check_other_policies(Expectations& expect, dt::Communicator& all) {
  const bool other = all.rank() == all.size() - 1;
  const auto refused = [&]<class S, class P>(const std::string& line, const std::string& than, S strategy,
                                             P precision) {
    const Data data{Rows(1), Rows(2)};
    Job job;
    expect.error(ExitCode::ranks_disagree,
                 {"rank " + std::to_string(all.size() - 1) + " was given another run",
                  "'" + line + "' where rank 0 has '" + than + "'"},
                 line, [&] { dt::Trainer<S, P>(some_steps(), strategy, precision).fit(job, data); });
  };
  refused("ddp.first_bucket_mb = 2", "ddp.first_bucket_mb = 4", dt::DDP{{.first_bucket_mb = other ? 2 : 4}},
          dt::FP32{});
  refused("ddp.reduce_format = bf16", "ddp.reduce_format = as summed",
          dt::DDP{{.reduce_format = other ? std::optional(dt::Format::bf16) : std::nullopt}}, dt::FP32{});
  refused("sharded-1.bucket_mb = 7", "sharded-1.bucket_mb = 2", dt::Sharded<1>{{.bucket_mb = other ? 7 : 2}},
          dt::FP32{});
  refused("sharded-2.reduce = at_boundary", "sharded-2.reduce = every_micro_batch",
          dt::Sharded<2>{{.reduce = other ? dt::at_boundary : dt::every_micro_batch}}, dt::FP32{});
  refused("fsdp.keep_below = 4", "fsdp.keep_below = 65536", dt::FSDP{{.keep_below = other ? 4 : 1 << 16}}, dt::FP32{});
  refused("fp16-mixed.growth = 4", "fp16-mixed.growth = 2", dt::FSDP{}, dt::FP16Mixed{{.growth = other ? 4.0 : 2.0}});

  // On every rank alike, and none that works.
  const Data data{Rows(1), Rows(2)};
  Job job;
  expect.error(
      ExitCode::arguments, {"DDP's reduce_format cannot be Double", "is summed in Float"},
      "a format that is wider than the sum", [&] {
        dt::Trainer<dt::DDP, dt::FP32>(some_steps(), dt::DDP{{.reduce_format = dt::Format::fp64}}).fit(job, data);
      });
  for (const int size : {0, -1}) {
    expect.error(ExitCode::arguments, {"DDP's bucket_mb must be at least 1."}, "a bucket of nothing",
                 [&] { dt::Trainer<dt::DDP, dt::FP32>(some_steps(), dt::DDP{{.bucket_mb = size}}).fit(job, data); });
    expect.error(ExitCode::arguments, {"DDP's first_bucket_mb must be at least 1."}, "a first bucket of nothing", [&] {
      dt::Trainer<dt::DDP, dt::FP32>(some_steps(), dt::DDP{{.first_bucket_mb = size}}).fit(job, data);
    });
  }
}

/// A model of which an exception has ended the fit: whole where every rank holds it, else it says why it is not.
void check_after_exception(Expectations& expect, const std::string& strategy) {
  Net* net = nullptr;
  std::shared_ptr<torch::nn::Module> kept;
  Job job;
  job.change = [&](Net& built) {
    net = &built;
    kept = built.shared_from_this();
  };
  job.at = [](const std::string& where) {
    if (where == "training_step") throw dt::Error(ExitCode::data, "on all ranks");
  };
  expect.error(ExitCode::data, {"on all ranks"}, strategy + " ends", [&] { fit(strategy, some_steps(), job); });
  std::string text;
  try {
    net->in->weight.sum().item<float>();
    net->spare.sum().item<float>();
  } catch (const std::exception& error) {
    text = error.what();
  }
  const bool cut = strategy == "fsdp";
  expect.that(text.empty() != cut, strategy + " after an exception: " + text);
  if (cut)
    expect.that(text.starts_with("the parameters 'spare', 'in.weight', 'in.bias', 'out.weight' and 3 more of the root "
                                 "unit are cut over the ranks, because fit ended by an exception"),
                "it says: " + text);
}

struct Lookup : torch::nn::Module {
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear head{nullptr};
};

/// An embedding whose gradients autograd makes sparse.
struct Looks {
  bool sparse = false;

  auto configure_model() const {
    auto net = std::make_shared<Lookup>();
    net->table = net->register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(12, 3).sparse(sparse)));
    net->head = net->register_module("head", torch::nn::Linear(3, 1));
    return net;
  }
  auto configure_optimizers(const dt::Parameters& p) const { return dt::SGD(p, {.lr = 0.1}); }
  Tensor training_step(Lookup& net, const dt::Batch& batch, dt::StepContext&) const {
    return torch::mse_loss(net.head(net.table(batch.data.select(1, 0).mul(2).abs().to(torch::kInt64))), batch.target);
  }
};

template <class Strategy>
void check_sparse(Expectations& expect, const std::string& what, bool deterministic = false) {
  const Data data{Rows(1), Rows(2)};
  for (const int64_t accumulate : {1, 2}) {
    auto options = some_steps();
    options.deterministic = deterministic;
    options.accumulate = accumulate;
    Looks sparse{true}, dense{false};
    const Outcome a = fit_with<Strategy, dt::FP32>(options, sparse, data);
    const Outcome b = fit_with<Strategy, dt::FP32>(options, dense, data);
    expect.that(apart(a.weights, b.weights) < 1e-6, "P20 " + what + ": sparse gradients train as dense ones do");
  }
}

/// One rank asks to stop: no rank takes another step.
void check_stop(Expectations& expect, dt::Communicator& all, const std::string& strategy) {
  for (const std::string when : {"step", "epoch"}) {
    std::string reason;
    const auto at = [&](const std::string& where) {
      return [&, where](dt::LoopState& state) {
        const bool now = where == "step" ? state.step() == 3 : state.epoch() == 0;
        if (where == when && now && all.rank() == all.size() - 1) state.stop("enough");
        reason = state.stop_reason();
      };
    };
    auto options = some_steps();
    options.max_epochs = 5;
    Job job;
    const Data data{Rows(1), Rows(2)};
    int64_t steps = 0;
    const auto train = [&](auto trainer) {
      const auto result = trainer.fit(
          job, data, dt::LambdaCallback{.on_train_step_end = at("step"), .on_train_epoch_end = at("epoch")});
      steps = result.steps;
      reason = result.stop_reason;
    };
    if (strategy == "ddp")
      train(dt::Trainer<dt::DDP, dt::FP32>(options));
    else
      train(dt::Trainer<dt::FSDP, dt::FP32>(options));
    expect.that(steps == (when == "step" ? 3 : 12 / all.size()),
                strategy + ": stops after the " + when + ", " + std::to_string(steps) + " steps");
    const std::string told = "rank " + std::to_string(all.size() - 1) + " asked to stop";
    expect.that(reason == (all.rank() == all.size() - 1 ? "enough" : told),
                strategy + ": knows why it stopped: " + reason);
  }
}

/// An overflow on one rank is one for all.
void check_skips(Expectations& expect, dt::Communicator& all, const std::string& strategy) {
  const int last = all.size() - 1;
  int calls = 0;
  Job job;
  job.then = [&](Tensor loss, dt::StepContext&) {
    const bool bad = all.rank() == last && (calls == 1 || calls == 2);
    ++calls;
    return bad ? loss * std::numeric_limits<double>::infinity() : loss;
  };
  const Data data{Rows(1), Rows(2)};
  const Outcome outcome = fit_by_name(strategy, some_steps(), job, data, dt::FP16Mixed({.init = 256}));
  expect.that(calls == 24 / all.size(), strategy + ": attempts " + std::to_string(calls));
  expect.that(outcome.steps == calls - 2, strategy + ": steps taken " + std::to_string(outcome.steps));
  expect.that(outcome.weights.isfinite().all().item<bool>(), strategy + ": finite weights");
  expect.that(same_on_all_ranks(all, outcome.weights),
              "C-57 P35 " + strategy + ": ranks part ways after a skipped step");
}

struct WithLBFGS {
  auto configure_model() { return torch::nn::Linear(3, 1); }
  auto configure_optimizers(const dt::Parameters& p) {
    return torch::optim::LBFGS(p.tensors(), torch::optim::LBFGSOptions(0.5).max_iter(3).line_search_fn("strong_wolfe"));
  }
  Tensor training_step(torch::nn::LinearImpl& net, const dt::Batch& batch, dt::StepContext&) {
    return torch::huber_loss(net.forward(batch.data), batch.target, at::Reduction::Mean, 0.5);
  }
};

/// Each evaluation is over the batches of all ranks.
void check_lbfgs(Expectations& expect, dt::Communicator& all) {
  for (const bool deterministic : {false, true}) {
    auto options = some_steps();
    options.deterministic = deterministic;
    options.batch_size = 5;  // the last batch is shorter, or some rank has none
    const Data data{Rows(1), Rows(2)};
    WithLBFGS task;
    const Outcome outcome = fit_with<dt::DDP, dt::FP32>(options, task, data);
    torch::manual_seed(options.seed);
    torch::nn::Linear net(3, 1);
    auto optimizer = torch::optim::LBFGS(net->parameters(),
                                         torch::optim::LBFGSOptions(0.5).max_iter(3).line_search_fn("strong_wolfe"));
    const int64_t rows = options.batch_size * all.size();
    for (int64_t epoch = 0; epoch < 2; ++epoch)
      for (int64_t first = 0; first < 36; first += rows)
        optimizer.step([&] {
          optimizer.zero_grad();
          const Rows& train = data.train_data();
          const Tensor loss = torch::huber_loss(net(train.x.slice(0, first, first + rows)),
                                                train.y.slice(0, first, first + rows), at::Reduction::Mean, 0.5);
          loss.backward();
          return loss;
        });
    expect.that(apart(outcome.weights, flat(*net)) < 1e-4,
                "LBFGS is " + std::to_string(apart(outcome.weights, flat(*net))) + " from the loop by hand");
    expect.that(same_on_all_ranks(all, outcome.weights), "LBFGS: ranks part ways");
  }
}

/// Floating buffers become their mean, the others rank 0's, in two collectives.
void check_buffers(Expectations& expect, dt::Communicator& all) {
  struct WithBuffers final : torch::nn::Module {
    explicit WithBuffers(int rank) {
      register_buffer("mask", torch::full({3}, std::numeric_limits<float>::lowest()));
      register_buffer("constant", torch::full({2, 2}, 0.1F));
      register_buffer("statistics", torch::arange(6, torch::kFloat32).view({2, 3}).t() + rank);
      register_buffer("half", torch::full({1}, rank, torch::kHalf));
      register_buffer("count", torch::full({}, (int64_t{1} << 60) + rank, torch::kInt64));
      register_buffer("flag", torch::full({2}, rank == 0, torch::kBool));
      register_buffer("empty", torch::empty({0}));
    }
  };
  for (const bool deterministic : {false, true}) {
    dt::RunContext run({.deterministic = deterministic}, {}, {});
    run.comm = all;
    run.module = std::make_shared<WithBuffers>(all.rank());
    const auto before = all.counts().calls;
    dt::synchronize_buffers(run);
    expect.that(deterministic || all.counts().calls - before == 2, "buffers take two collectives");
    const double mean = (all.size() - 1) / 2.0;
    const auto equals = [&](const std::string& name, const Tensor& expected) {
      expect.that(torch::equal(run.module->named_buffers()[name], expected), "buffer '" + name + "'");
    };
    equals("mask", torch::full({3}, std::numeric_limits<float>::lowest()));
    equals("constant", torch::full({2, 2}, 0.1F));
    equals("statistics", torch::arange(6, torch::kFloat32).view({2, 3}).t() + mean);
    equals("half", torch::full({1}, mean, torch::kHalf));
    equals("count", torch::full({}, int64_t{1} << 60, torch::kInt64));
    equals("flag", torch::ones({2}, torch::kBool));
  }
}

/// Of a model that exists: the mean over all rows, whoever has them.
void check_validate(Expectations& expect, dt::Communicator& all) {
  auto options = some_steps();
  options.batch_size = 5;  // the last batch is shorter, or some rank has none
  torch::manual_seed(5);
  const auto net = std::make_shared<Net>();
  const Data data{Rows(1), Rows(2)};
  const Rows& rows = data.validation_data();
  torch::NoGradGuard no_grad;
  const double expected = torch::mse_loss(net->out(torch::tanh(net->in(rows.x))), rows.y).item<double>();
  Job job;
  const auto compare = [&](const dt::MetricsRow& row, const std::string& what) {
    const double* loss = row.find("loss");
    expect.that(loss && std::abs(*loss - expected) < 1e-6, what + ": validates as one rank does");
  };
  compare(dt::Trainer<dt::DDP, dt::FP32>(options).validate(job, net, data), "ddp");
  compare(dt::Trainer<dt::FSDP, dt::FP32>(options).validate(job, net, rows), "fsdp");
  expect.that(same_on_all_ranks(all, flat(*net)), "validate leaves the model alone");
}

int check_all() {
  Expectations expect;
  dt::Communicator all = dt::Communicator::connect(dt::current_ranks());
  for (const Way& way : {Way{"ddp"}, Way{"ddp", true}, Way{"sharded-1"}, Way{"sharded-2"}, Way{"fsdp"}}) {
    check_unused(expect, all, way);
    check_disagreement(expect, all, way);
  }
  for (const std::string strategy : {"ddp", "sharded-1", "sharded-2", "fsdp"}) check_skips(expect, all, strategy);
  for (const std::string strategy : {"ddp", "fsdp"}) {
    check_other_runs(expect, all, strategy);
    check_stop(expect, all, strategy);
  }
  check_other_policies(expect, all);
  for (const std::string strategy : {"ddp", "sharded-2", "fsdp"}) check_after_exception(expect, strategy);
  check_sparse<dt::DDP>(expect, "ddp");
  check_sparse<dt::DDP>(expect, "ddp, deterministic", true);
  check_sparse<dt::Sharded<1>>(expect, "sharded-1");
  check_sparse<dt::Sharded<2>>(expect, "sharded-2");
  check_sparse<dt::FSDP>(expect, "fsdp");
  check_lbfgs(expect, all);
  check_buffers(expect, all);
  check_validate(expect, all);
  return expect.finish();
}

/// One rank fails in the middle of a fit, by what main does not catch.
int fail(const std::string& act, const std::string& strategy, bool victim) {
  const auto fails = [=](const std::string& where) {
    if (victim && where == act) throw dt::Error(ExitCode::data, "the file is cut in " + where);
    if (victim && act == "foreign" && where == "training_step") throw std::runtime_error("boom");
    if (victim && act == "shapes" && where == "training_step") torch::ones({2}).add(torch::ones({3}));
  };
  Job job;
  job.at = fails;
  if (act == "nan")
    job.then = [=](Tensor loss, dt::StepContext& step) {
      return victim && step.step() == 2 ? loss * std::nan("") : loss;
    };
  if (act == "models")
    job.change = [=](Net& net) {
      if (victim) net.extra->weight.set_data(torch::ones({7, 3}));
    };
  if (act == "frozen")
    job.before = [=](Net& net, int64_t step) {
      for (Tensor& parameter : net.extra->parameters()) parameter.requires_grad_(!victim || step < 2);
    };
  if (act == "unused") job.spare = [=](int64_t) { return victim ? Job::Part::unused : Job::Part::used; };
  Rows train(1);
  train.at = fails;
  const Data data{train, Rows(2)};
  if (act == "freed") {
    Net* net = nullptr;
    job.change = [&](Net& built) { net = &built; };
    job.at = [&](const std::string& where) {
      if (victim && where == "training_step") net->extra->weight.sum();
    };
    dt::Trainer<dt::FSDP, dt::FP32>(some_steps(), dt::FSDP{{.keep_below = 0}}).fit(job, data);
    return 0;
  }
  fit_by_name<dt::FP32>(strategy, some_steps(), job, data);
  return 0;
}

void check_failures(support::Checks& check) {
  const auto run = [](const std::string& act, const std::string& strategy, const std::string& victim, int ranks) {
    return run_self({"--ranks", std::to_string(ranks), act, strategy, victim}, {}, 60);
  };
  // What each strategy makes of it is held by the fits above: by turns here, how the processes end.
  int turn = 0;
  const auto strategies = [&turn] {
    const std::vector<std::string> both{"ddp", "fsdp"};
    return support::long_tests() ? both : std::vector<std::string>{both[std::size_t(turn++ % 2)]};
  };
  for (const std::string where :
       {"configure_model", "configure_optimizers", "fetch", "training_step", "validation_step"})
    for (const std::string& strategy : strategies()) {
      const std::string victim = strategy == "ddp" ? "1" : "0";
      check.ended(run(where, strategy, victim, 2), 5, "rank " + victim + " throws in " + where + " under " + strategy,
                  {"dovetail: [rank " + victim + "] the file is cut in " + where + "\n",
                   "dovetail: rank " + victim + " ended with exit code 5"});
    }
  check.ended(run("training_step", "sharded-2", "1", 3), 5, "rank 1 of 3 throws",
              {"dovetail: [rank 1] the file is cut"});
  check.ended(run("foreign", "fsdp", "1", 2), 1, "a foreign exception", {"dovetail: [rank 1] boom\n"});
  check.ended(run("freed", "fsdp", "0", 2), 1, "a freed parameter is read",
              {"dovetail: [rank 0] the parameters 'extra.weight', 'extra.bias' of unit 'extra' are read while FSDP has "
               "freed them."});
  const auto shapes = run("shapes", "ddp", "0", 2);
  check.ended(shapes, 1, "an exception of LibTorch", {"dovetail: [rank 0] The size of tensor a (2) must match"});
  check.that(!shapes.says("Exception raised from"), "no stack is shown");
  for (const std::string& strategy : strategies())
    check.ended(run("nan", strategy, "1", 3), 6, "NaN on rank 1 of 3 under " + strategy,
                {"the loss is NaN at step 2 (epoch 0) on rank 1"});
  for (const std::string& strategy : strategies())
    check.ended(run("models", strategy, "1", 2), 3, "another model on rank 1 under " + strategy,
                {"rank 1 built another model than rank 0", "extra.weight [7, 3]", "extra.weight [1, 3]"});
  for (const std::string& strategy : strategies())
    check.ended(run("frozen", strategy, "1", 3), 3, "frozen on rank 1 of 3 under " + strategy,
                {"the parameter 'extra.weight' is frozen on rank 1 and not on rank 0, rank 2 at step 2"});
  for (const std::string& strategy : strategies())
    check.ended(run("unused", strategy, "0", 2), 1, "unused on rank 0 under " + strategy,
                {"the parameter 'spare' got no gradient on some ranks at step 0"});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    ::alarm(200);
    dt::Launch launch(argc, argv);
    const std::string act = argv[1];
    if (act == "all") return check_all();
    return fail(act, argv[2], argv[3] == std::to_string(launch.ranks().rank));
  }
  ::alarm(800);
  ::setenv("OMP_NUM_THREADS", "1", 1);
  support::Checks check;
  for (const std::string ranks : {"2", "3"})
    check.ended(run_self({"--ranks", ranks, "all"}, {}, 200), 0, "fits of " + ranks + " ranks", {" held\n"});
  check_failures(check);
  return check.summary();
}
