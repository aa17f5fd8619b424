// SPDX-License-Identifier: Apache-2.0
// Tasks of other types than the tests share: what their functions may return, and which they may leave out.
#include <catch2/catch.hpp>

#include "support/loop_run.hpp"

#include <dovetail/policies.hpp>

namespace {

using namespace loop;
using Catch::Matchers::Contains;
using dovetail::ExitCode;
using dovetail::LoopState;
using OneDevice = dovetail::Trainer<dovetail::SingleDevice, dovetail::FP32>;

dovetail::TrainerOptions in_order(int64_t epochs = 2) {
  return {.max_epochs = epochs, .batch_size = 4, .shuffle = false, .sanity_validation_batches = 0, .progress = false};
}

/// The same training step for all.
template <class Net>
struct Base {
  Tensor training_step(Net& net, const Batch& batch, StepContext&) {
    return torch::mse_loss(net.forward(batch.data), batch.target);
  }
};

struct ByHolder : Base<torch::nn::LinearImpl> {
  auto configure_model() { return torch::nn::Linear(3, 1); }
  auto configure_optimizers(const Parameters& p) { return dovetail::SGD(p, {.lr = 0.1}); }
};
struct ByUnique : Base<torch::nn::LinearImpl> {
  auto configure_model() { return std::make_unique<torch::nn::LinearImpl>(3, 1); }
  auto configure_optimizers(const Parameters& p) {
    return std::make_shared<dovetail::SGD>(p, dovetail::SGDOptions{.lr = 0.1});
  }
};
struct ByShared : Base<torch::nn::LinearImpl> {
  auto configure_model() const { return std::make_shared<torch::nn::LinearImpl>(3, 1); }
  auto configure_optimizers(const Parameters& p) const { return std::tuple(dovetail::SGD(p, {.lr = 0.1})); }
};
struct NoModel : ByShared {
  auto configure_model() const { return std::shared_ptr<torch::nn::LinearImpl>(); }
};

}  // namespace

TEST_CASE("a model comes as a holder, a unique_ptr or a shared_ptr", "[loop]") {
  Data data;
  ByHolder holder;
  ByUnique unique;
  const auto a = OneDevice(in_order()).fit(holder, data), b = OneDevice(in_order()).fit(unique, data),
             c = OneDevice(in_order()).fit(ByShared{}, data);
  static_assert(std::is_same_v<decltype(a.model), std::shared_ptr<torch::nn::LinearImpl>>);
  CHECK(a.steps == 12);
  CHECK(torch::equal(flat(*a.model), flat(*b.model)));
  CHECK(torch::equal(flat(*a.model), flat(*c.model)));
  const auto error = error_of([&] { OneDevice(in_order()).fit(NoModel{}, data); });
  CHECK(error.code() == ExitCode::user_code);
  CHECK_THAT(error.what(), Contains("configure_model returned no model"));
}

namespace {

/// Two layers, and something that a test does to them.
struct Twins : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 4));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(3, 4));
  Tensor forward(const Tensor& x) { return (first(x) - second(x)).sum(1, true); }
};
struct Changes : Base<Twins> {
  std::function<void(Twins&)> change = [](Twins&) {};
  std::function<void()> in_step = [] {};
  auto configure_model() const {
    auto twins = std::make_shared<Twins>();
    change(*twins);
    return twins;
  }
  auto configure_optimizers(const Parameters& p) const { return dovetail::SGD(p, {.lr = 0.1}); }
  Tensor training_step(Twins& net, const Batch& batch, StepContext& step) {
    in_step();
    return Base<Twins>::training_step(net, batch, step);
  }
};

}  // namespace

TEST_CASE("tensors of a model that share memory without being one are refused by name", "[loop]") {
  Data data;
  const auto said = [&](std::function<void(Twins&)> change) -> std::string {
    Changes task;
    task.change = std::move(change);
    const auto error = error_of([&] { OneDevice(in_order()).fit(task, data); });
    CHECK(error.code() == ExitCode::user_code);
    return error.what();
  };
  const std::string rest = " share memory but are two tensors, which training would untie: keep one of them";
  CHECK_THAT(said([](Twins& twins) { twins.second->weight.set_data(twins.first->weight.detach()); }),
             Contains("the parameter 'first.weight' and the parameter 'second.weight'" + rest));
  CHECK_THAT(
      said([](Twins& twins) { twins.second->bias.set_data(twins.first->weight.detach().view({-1}).slice(0, 8, 12)); }),
      Contains("the parameter 'first.weight' and the parameter 'second.bias'" + rest));
  CHECK_THAT(said([](Twins& twins) { twins.register_buffer("copy", twins.first->bias.detach()); }),
             Contains("'first.bias'") && Contains("the buffer 'copy'") && Contains(rest));

  // Beside each other in one storage, as an earlier fit leaves them; one tensor under two names; two buffers.
  Changes fine;
  fine.change = [](Twins& twins) {
    const Tensor home = torch::randn({32});
    twins.first->weight.set_data(home.slice(0, 0, 12).view({4, 3}));
    twins.second->weight.set_data(home.slice(0, 12, 24).view({4, 3}));
    twins.first->register_parameter("again", twins.first->bias);
    twins.register_buffer("one", home.slice(0, 24, 28));
    twins.register_buffer("two", home.slice(0, 26, 32));
  };
  CHECK(OneDevice(in_order()).fit(fine, data).steps == 12);
}

TEST_CASE("a model of which nothing can be trained is refused", "[loop]") {
  struct Empty : torch::nn::Module {
    Tensor forward(const Tensor& x) { return x; }
  };
  struct OfNothing : Base<Empty> {
    auto configure_model() const { return std::make_shared<Empty>(); }
    auto configure_optimizers(const Parameters& p) const { return dovetail::SGD(p, {.lr = 0.1}); }
  };
  Data data;
  const auto none = error_of([&] { OneDevice(in_order()).fit(OfNothing{}, data); });
  CHECK(none.code() == ExitCode::user_code);
  CHECK_THAT(none.what(), Contains("the model has no parameters, so there is nothing to train"));
  Changes frozen;
  frozen.change = [](Twins& twins) {
    for (Tensor& parameter : twins.parameters()) parameter.requires_grad_(false);
  };
  const auto all = error_of([&] { OneDevice(in_order()).fit(frozen, data); });
  CHECK(all.code() == ExitCode::user_code);
  CHECK_THAT(all.what(), Contains("no trainable parameter, since all its 4 are frozen"));
}

TEST_CASE("one rank makes an FSDP model whole when an exception ends the fit", "[loop]") {
  Data data;
  Changes task;
  Twins* twins = nullptr;
  std::shared_ptr<torch::nn::Module> kept;
  task.change = [&](Twins& built) {
    twins = &built;
    kept = built.shared_from_this();
  };
  int steps = 0;
  task.in_step = [&] {
    if (++steps == 3) throw dovetail::Error(ExitCode::data, "the third step");
  };
  dovetail::Trainer<dovetail::FSDP, dovetail::FP32> trainer(in_order());
  CHECK(error_of([&] { trainer.fit(task, data); }).code() == ExitCode::data);
  const Tensor cut_off = flat(*twins);

  auto options = in_order();
  options.max_steps = 2;
  Changes whole;
  CHECK(torch::equal(cut_off, flat(*OneDevice(options).fit(whole, data).model)));
}

TEST_CASE("P20 sparse gradients train on one device as dense ones do", "[loop]") {
  struct Lookup : torch::nn::Module {
    explicit Lookup(bool sparse)
        : table(register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(12, 1).sparse(sparse)))) {}
    Tensor forward(const Tensor& x) { return table(x.select(1, 0).abs().mul(2).to(torch::kInt64)); }
    torch::nn::Embedding table;
  };
  struct Looking : Base<Lookup> {
    bool sparse = false;
    auto configure_model() const { return std::make_shared<Lookup>(sparse); }
    auto configure_optimizers(const Parameters& p) const { return dovetail::AdamW(p, {.lr = 0.1}); }
  };
  Data data;
  for (const bool clips : {false, true}) {
    auto options = in_order();
    options.accumulate = 2;
    if (clips) options.gradient_clip = dovetail::clip_norm(0.1);
    Looking sparse, dense;
    sparse.sparse = true;
    const auto a = OneDevice(options).fit(sparse, data), b = OneDevice(options).fit(dense, data);
    CHECK((flat(*a.model) - flat(*b.model)).abs().max().item<double>() < 1e-6);
  }
}

TEST_CASE("without validation_step nothing is validated, and no validation data is asked for", "[loop]") {
  struct Split {
    Rows train{24, 1};
    int asked = 0;
    const Rows& train_data() const { return train; }
    Rows validation_data() const { throw std::logic_error("asked for validation data"); }
  } data;
  auto options = in_order();
  options.sanity_validation_batches = 2;
  const auto result = OneDevice(options).fit(ByShared{}, data);
  CHECK(result.steps == 12);
  CHECK(result.validation.values.empty());
  const auto alone = OneDevice(options).fit(ByShared{}, data.train);  // one data set is for training
  CHECK(torch::equal(flat(*alone.model), flat(*result.model)));
}

TEST_CASE("T5 T8 validate is the pass over validation data that a fit makes", "[loop]") {
  auto options = in_order();
  options.batch_size = 7;  // of 10 rows
  Script script;
  Data data;
  OneDevice trainer(options);
  const auto result = trainer.fit(script, data);
  const int configured = script.configured, models = script.models, steps = script.steps;
  const Tensor before = weights(result);
  for (const bool training : {true, false}) {
    result.model->train(training);
    const auto row = trainer.validate(script, result.model, data);
    CHECK(row.stage == "validation");
    REQUIRE(row.find("loss"));
    CHECK(*row.find("loss") == *result.validation.find("loss"));
    CHECK(result.model->is_training() == training);
  }
  // One data set is the one to validate with, and limits hold.
  options.limit_validation_batches = 1;
  data.train.asked->clear();
  OneDevice(options).validate(script, result.model, data.train);
  CHECK(*data.train.asked == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6});
  CHECK(torch::equal(weights(result), before));
  CHECK(script.configured == configured);  // nothing is made and nothing trained
  CHECK(script.models == models);
  CHECK(script.steps == steps);

  auto linear = std::make_shared<torch::nn::LinearImpl>(3, 1);
  auto error = error_of([&] { trainer.validate(ByShared{}, linear, data); });
  CHECK(error.code() == ExitCode::user_code);
  CHECK_THAT(error.what(), Contains("validation_step"));
  const dovetail::TrainOnly<Rows> no_validation(data.train);
  error = error_of([&] { trainer.validate(script, result.model, no_validation); });
  CHECK(error.code() == ExitCode::data);
  CHECK_THAT(error.what(), Contains("validation_data"));
}

namespace {

/// Two optimizers, each with half of the model and a schedule of its own.
struct Halves {
  bool overlap = false;
  auto configure_model() { return std::make_shared<Net>(); }
  auto configure_optimizers(const Parameters& p) {
    const auto inner = [](const std::string& name) { return name.starts_with("in."); };
    const auto all = [](const std::string&) { return true; };
    const auto outer = overlap ? p.where(all) : p.where_not(inner);
    return std::tuple(dovetail::scheduled(dovetail::AdamW(p.where(inner), {.lr = 0.02}),
                                          dovetail::StepDecay{.every = 3, .gamma = 0.5}),
                      dovetail::SGD(outer, {.lr = 0.05, .momentum = 0.9}));
  }
  std::function<Tensor(Net&, const Batch&, StepContext&)> loss = mse;
  Tensor training_step(Net& net, const Batch& batch, StepContext& step) { return loss(net, batch, step); }
};

/// What Halves should do, by LibTorch.
Tensor halves_by_hand(const dovetail::TrainerOptions& options) {
  torch::manual_seed(options.seed);
  Net net;
  torch::optim::AdamW adam(net.in->parameters(), torch::optim::AdamWOptions(0.02));
  torch::optim::SGD sgd(net.out->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const Data data;
  for (int step = 0; step < 12; ++step) {
    const int64_t first = step % 6 * 4;
    adam.zero_grad();
    sgd.zero_grad();
    torch::mse_loss(net.forward(data.train.x.slice(0, first, first + 4)), data.train.y.slice(0, first, first + 4))
        .backward();
    if (options.gradient_clip) {
      torch::nn::utils::clip_grad_norm_(net.parameters(), options.gradient_clip->limit);
    }
    adam.param_groups()[0].options().set_lr(0.02 * std::pow(0.5, step / 3));
    adam.step();
    sgd.step();
  }
  return flat(net);
}

}  // namespace

TEST_CASE("two optimizers over parts that share nothing", "[loop]") {
  Data data;
  for (const bool clip : {false, true}) {
    auto options = in_order();
    if (clip) options.gradient_clip = dovetail::clip_norm(0.1);  // over both together
    CHECK(apart(flat(*OneDevice(options).fit(Halves{}, data).model), halves_by_hand(options)) < 1e-6);
  }
  const auto error = error_of([&] { OneDevice(in_order()).fit(Halves{.overlap = true}, data); });
  CHECK(error.code() == ExitCode::user_code);
  CHECK_THAT(error.what(), Contains("optimizer 1 (dovetail::SGD) holds 'in.weight', which optimizer 0 holds too"));
}

TEST_CASE("P4 gradients of one optimizer overflow: the other steps", "[loop]") {
  Data data;
  Halves task;
  task.loss = [n = 0](Net& net, const Batch& batch, StepContext& step) mutable {
    const Tensor loss = mse(net, batch, step);
    // A finite loss whose gradient is infinite for in.bias alone.
    return n++ == 2 ? loss + (net.in->bias * 0).sqrt().sum() : loss;
  };
  std::vector<Tensor> seen;
  std::vector<bool> skipped;
  double scale = 0;
  Watch watch;
  watch.see = [&](const std::string& hook, LoopState& s) {
    if (hook == "fit_start" || hook == "step_end") seen.push_back(flat(*s.run.module));
    if (hook == "step_end") skipped.push_back(s.step_skipped);
    scale = s.run.scaler->scale();
  };
  dovetail::Trainer<dovetail::SingleDevice, Scaled> trainer(in_order(1), {}, Scaled({.init = 256}));
  const auto result = trainer.fit(task, data, watch);
  CHECK(result.steps == 6);  // something was taken at each
  CHECK(skipped == std::vector<bool>{false, false, true, false, false, false});
  CHECK(scale == 128);
  REQUIRE(seen.size() == 7);
  const auto inner = [](const Tensor& weights) { return weights.slice(0, 0, 16); };
  const auto outer = [](const Tensor& weights) { return weights.slice(0, 16); };
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(torch::equal(inner(seen[i]), inner(seen[i + 1])) == (i == 2));
    CHECK_FALSE(torch::equal(outer(seen[i]), outer(seen[i + 1])));
    CHECK(torch::isfinite(seen[i + 1]).all().item<bool>());
  }
}

namespace {

/// LibTorch's optimizer and scheduler.
struct Foreign {
  dovetail::Interval interval = dovetail::Interval::step;
  bool overflows = false;
  int n = 0;
  auto configure_model() { return std::make_shared<Net>(); }
  auto configure_optimizers(const Parameters& p) {
    return dovetail::scheduled(torch::optim::Adam(p.tensors(), torch::optim::AdamOptions(0.02)),
                               [](auto& optimizer) { return torch::optim::StepLR(optimizer, 2, 0.5); },
                               {.interval = interval});
  }
  Tensor training_step(Net& net, const Batch& batch, StepContext& step) {
    return mse(net, batch, step) * (overflows && n++ % 3 == 0 ? std::numeric_limits<double>::infinity() : 1.0);
  }
};

}  // namespace

TEST_CASE("LibTorch's schedulers count taken steps, or epochs", "[loop]") {
  const auto rates = [](auto trainer, Foreign task) {
    std::vector<double> all;
    Watch watch;
    watch.see = [&](const std::string& hook, LoopState& s) {
      if (hook == "step_end" && !s.step_skipped)
        all.push_back(std::as_const(s.run.optimizers[0].base()).param_groups()[0].options().get_lr());
    };
    Data data;
    trainer.fit(task, data, watch);
    return all;
  };
  const auto halved = [](std::vector<int> times) {
    std::vector<double> all;
    for (int n : times) all.push_back(0.02 / double(1 << n));
    return all;
  };
  // LibTorch's first step() changes nothing (Python's constructor takes it): by hand it is the same. After a step the
  // rate is that of the next one.
  CHECK(rates(OneDevice(in_order()), {}) == halved({0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5}));
  std::vector<int> by_epoch(18, 0);
  by_epoch.resize(30, 1);
  CHECK(rates(OneDevice(in_order(5)), {.interval = dovetail::Interval::epoch}) == halved(by_epoch));
  // A skipped step is none.
  CHECK(rates(dovetail::Trainer<dovetail::SingleDevice, Scaled>(in_order()), {.overflows = true}) ==
        halved({0, 0, 1, 1, 2, 2, 3, 3}));
}

namespace {

struct WithLBFGS {
  torch::optim::LBFGSOptions options{0.1};  // small, or it diverges without line search
  auto configure_model() { return std::make_shared<Net>(); }
  auto configure_optimizers(const Parameters& p) { return std::make_unique<torch::optim::LBFGS>(p.tensors(), options); }
  Tensor training_step(Net& net, const Batch& batch, StepContext& step) { return mse(net, batch, step); }
};

}  // namespace

TEST_CASE("LBFGS does in a fit what it does by hand", "[loop]") {
  for (const std::string search : {"", "strong_wolfe"})
    for (const bool clip : {false, true})
      for (const int64_t accumulate : {1, 3}) {
        if (clip && search.empty()) continue;  // clipped differences of gradients make steps that diverge
        CAPTURE(search, clip, accumulate);
        WithLBFGS task;
        task.options.max_iter(3).history_size(5);
        if (!search.empty()) task.options.line_search_fn(search);
        auto options = in_order();
        options.accumulate = accumulate;
        if (clip) options.gradient_clip = dovetail::clip_norm(0.2);

        torch::manual_seed(options.seed);
        Net net;
        torch::optim::LBFGS optimizer(net.parameters(), task.options);
        Data data;
        const int64_t window = 4 * accumulate;
        double last = 0;
        for (int64_t epoch = 0; epoch < 2; ++epoch)
          for (int64_t first = 0; first < 24; first += window) {
            const auto closure = [&] {
              optimizer.zero_grad();
              // As batches of their own, which gives the bits of accumulation.
              Tensor total = torch::zeros({});
              for (int64_t row = first; row < first + window; row += 4) {
                const Tensor loss = torch::mse_loss(net.forward(data.train.x.slice(0, row, row + 4)),
                                                    data.train.y.slice(0, row, row + 4));
                loss.backward();
                total += loss.detach();
              }
              for (const Tensor& parameter : net.parameters()) parameter.grad().div_(double(accumulate));
              if (clip) torch::nn::utils::clip_grad_norm_(net.parameters(), 0.2);
              last = total.item<double>() / double(accumulate);
              return total / double(accumulate);
            };
            optimizer.step(closure);
          }
        const auto one = OneDevice(options).fit(task, data);
        CHECK(one.steps == 2 * 6 / accumulate);
        CHECK(apart(flat(*one.model), flat(net)) < 1e-4);
        CHECK(one.loss == Approx(last).epsilon(1e-4));
        const auto ddp = dovetail::Trainer<dovetail::DDP, dovetail::FP32>(options).fit(task, data);
        CHECK(torch::equal(flat(*ddp.model), flat(*one.model)));
      }
}

namespace {

/// A Task that looks at its own fit.
struct Looks : ByShared {
  std::vector<std::string>& calls;
  void on_fit_start(LoopState&) { calls.push_back("fit_start"); }
  void on_train_epoch_end(LoopState& s) { calls.push_back("epoch " + std::to_string(s.step())); }
  void on_fit_end(LoopState&) { calls.push_back("fit_end"); }
};

}  // namespace

TEST_CASE("a Task may have hooks of its own, which come before those of callbacks", "[loop]") {
  std::vector<std::string> calls;
  Looks task{{}, calls};
  Watch watch;
  watch.see = [&](const std::string& hook, LoopState&) {
    if (hook == "fit_start" || hook == "epoch_end") calls.push_back("watch");
  };
  Data data;
  auto options = in_order(1);
  options.accumulate = 3;
  OneDevice(options).fit(task, data, watch);
  CHECK(calls == std::vector<std::string>{"fit_start", "watch", "epoch 2", "watch", "fit_end"});
}
