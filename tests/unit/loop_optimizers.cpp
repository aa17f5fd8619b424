// SPDX-License-Identifier: Apache-2.0
// Which optimizers a fit takes, which it refuses, and that it does with them what a loop by hand does.
#include <catch2/catch.hpp>

#include "support/loop_run.hpp"

namespace {

using dovetail::ExitCode;
using dovetail::LoopState;
using namespace loop;
using Catch::Matchers::Contains;

template <class Make>
Script made_by(Make make) {
  Script script;
  script.optimizer = make;
  return script;
}

/// Steps of a refused fit: none.
dovetail::Error refused(Script script, Setting setting = {}) {
  const auto error = error_of([&] { fit(setting, script); });
  CHECK(script.steps == 0);
  CHECK(script.configured == 1);
  return error;
}

bool is_weight(const std::string& name) {
  return name.ends_with("weight");
}

}  // namespace

TEST_CASE("T11 an optimizer that holds what it may not is refused by name", "[loop]") {
  const auto foreign = torch::ones({5}).requires_grad_(true);
  auto error = refused(made_by([&](const Parameters& p) -> AnyOptimizer {
    auto tensors = p.tensors();
    tensors.push_back(foreign);
    return std::make_unique<torch::optim::SGD>(tensors, 0.1);
  }));
  CHECK(error.code() == ExitCode::user_code);
  CHECK_THAT(error.what(), Contains("optimizer 0 (torch::optim::SGD)") && Contains("may not be optimized here") &&
                               Contains("shape [5]") && Contains("entry 4 of group 0"));

  // Made too early: over another model's parameters, under names that sound right.
  auto early = std::make_shared<Net>();
  error = refused(made_by([&](const Parameters&) -> AnyOptimizer {
    Parameters mine;
    for (const auto& item : early->named_parameters())
      mine.push_back({item.key(), item.value().sizes().vec(), item.value()});
    return std::make_unique<dovetail::AdamW>(mine);
  }));
  CHECK(error.code() == ExitCode::user_code);
  CHECK_THAT(error.what(), Contains("'in.weight'") && Contains("may not be optimized here"));

  error = refused(made_by([&](const Parameters& p) -> AnyOptimizer {
    auto tensors = p.tensors();
    tensors.push_back(tensors[1]);
    return std::make_unique<torch::optim::SGD>(tensors, 0.1);
  }));
  CHECK_THAT(error.what(), Contains("holds 'in.bias' twice"));

  error = refused(made_by([&](const Parameters&) -> AnyOptimizer { return nullptr; }));
  CHECK(error.code() == ExitCode::user_code);
  CHECK_THAT(error.what(), Contains("null pointer"));
}

TEST_CASE("an optimizer over nothing is refused", "[loop]") {
  const auto none = [](const std::string&) { return false; };
  const std::vector<std::function<AnyOptimizer(const Parameters&)>> makers{
      [&](const Parameters& p) -> AnyOptimizer { return std::make_unique<dovetail::AdamW>(p.where(none)); },
      [&](const Parameters&) -> AnyOptimizer {
        return std::make_unique<dovetail::SGD>(std::vector<dovetail::ParameterGroup<dovetail::SGDOptions>>{});
      },
      [&](const Parameters&) -> AnyOptimizer {
        return std::make_unique<torch::optim::SGD>(std::vector<Tensor>{}, 0.1);
      }};
  for (const auto& make : makers) {
    const auto error = refused(made_by(make));
    CHECK(error.code() == ExitCode::user_code);
    CHECK_THAT(error.what(), Contains("holds no parameters"));
  }
}

TEST_CASE("a parameter that the fused kernel would misread is refused", "[loop]") {
  Script script;
  script.model = [] {
    auto net = std::make_shared<Net>();
    net->spare = net->register_parameter("spare", torch::ones({1}).expand({3}));
    return net;
  };
  auto error = refused(script);
  CHECK(error.code() == ExitCode::user_code);
  CHECK_THAT(error.what(), Contains("'spare'") && Contains("contiguous"));
  script.optimizer = [](const Parameters& p) -> AnyOptimizer {
    return std::make_unique<torch::optim::SGD>(p.tensors(), 0.1);
  };
  error = refused(script);
  CHECK(error.code() == ExitCode::user_code);
  CHECK_THAT(error.what(), Contains("'spare'") && Contains("contiguous"));

  // Not contiguous but dense is fine: a transposed weight trains as a contiguous one does.
  const auto train = [](bool transposed, std::optional<dovetail::ClipOptions> clip) {
    Setting setting;
    setting.options.gradient_clip = clip;
    Script script;
    script.optimizer = maker<dovetail::AdamW>(dovetail::AdamWOptions{.lr = 0.01});
    script.model = [=] {
      auto net = std::make_shared<Net>();
      torch::NoGradGuard no_grad;
      if (transposed) net->in->weight.set_data(net->in->weight.t().contiguous().t());
      return net;
    };
    const Result result = fit(setting, script);
    CHECK(result.model->in->weight.is_contiguous() != transposed);
    return weights(result);
  };
  CHECK(apart(train(true, {}), train(false, {})) < 1e-6);
  CHECK(apart(train(true, dovetail::clip_norm(0.1)), train(false, dovetail::clip_norm(0.1))) < 1e-6);
}

TEST_CASE("true fp16 refuses an eps of Adam that fp16 cannot hold", "[loop]") {
  const auto with_eps = [](double eps) {
    return made_by(maker<dovetail::AdamW>(dovetail::AdamWOptions{.lr = 1e-3, .eps = eps}));
  };
  for (const Pair pair : {Pair::fp16_true, Pair::apex_o3}) {
    for (const double eps : {1e-8, 9.9e-5, 0.0}) {
      const auto error = refused(with_eps(eps), {.pair = pair});
      CHECK(error.code() == ExitCode::arguments);
      CHECK_THAT(error.what(), Contains("AdamW") && Contains("eps") && Contains("fp16") && Contains("1e-4"));
    }
    CHECK(refused(made_by(maker<dovetail::Adam>(dovetail::AdamOptions{})), {.pair = pair}).code() ==
          ExitCode::arguments);
    // In any group.
    const auto in_group =
        refused(made_by([](const Parameters& p) -> AnyOptimizer {
                  return std::make_unique<dovetail::Adam>(std::vector<dovetail::ParameterGroup<dovetail::AdamOptions>>{
                      {p.where(is_weight), {.eps = 1e-3}}, {p.where_not(is_weight), {.eps = 1e-6}}});
                }),
                {.pair = pair});
    CHECK(in_group.code() == ExitCode::arguments);
    CHECK_THAT(in_group.what(), Contains("group 1"));

    CHECK(error_of({.pair = pair}, with_eps(1e-4)).code() == ExitCode::done);
    CHECK(error_of({.pair = pair}, made_by(maker<dovetail::SGD>(dovetail::SGDOptions{.lr = 1e-3}))).code() ==
          ExitCode::done);
  }
  for (const Pair pair : {Pair::fp32, Pair::fp16_mixed, Pair::scaled})
    CHECK(error_of({.pair = pair}, with_eps(1e-8)).code() == ExitCode::done);
}

TEST_CASE("parameter groups have options of their own", "[loop]") {
  Setting setting;
  setting.options.shuffle = false;
  setting.options.max_epochs = 2;
  const double rates[] = {0.05, 0.0}, decays[] = {0.2, 0.0};
  Script script = made_by([&](const Parameters& p) -> AnyOptimizer {
    return std::make_unique<dovetail::AdamW>(std::vector<dovetail::ParameterGroup<dovetail::AdamWOptions>>{
        {p.where(is_weight), {.lr = rates[0], .weight_decay = decays[0]}},
        {p.where_not(is_weight), {.lr = rates[1], .weight_decay = decays[1]}}});
  });
  torch::manual_seed(setting.options.seed);
  Net by_hand;
  const Tensor before = flat(by_hand);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (int g = 0; g < 2; ++g) {
    std::vector<Tensor> tensors;
    for (const auto& item : by_hand.named_parameters())
      if (is_weight(item.key()) == (g == 0)) tensors.push_back(item.value());
    groups.emplace_back(tensors, std::make_unique<torch::optim::AdamWOptions>(
                                     torch::optim::AdamWOptions(rates[g]).weight_decay(decays[g])));
  }
  torch::optim::AdamW optimizer(groups);
  const Data data;
  for (int step = 0; step < 12; ++step) {
    const int64_t first = step % 6 * 4;
    optimizer.zero_grad();
    torch::mse_loss(by_hand.forward(data.train.x.slice(0, first, first + 4)), data.train.y.slice(0, first, first + 4))
        .backward();
    optimizer.step();
  }
  const Result result = fit(setting, script);
  CHECK(apart(weights(result), flat(by_hand)) < 1e-6);
  torch::manual_seed(setting.options.seed);
  CHECK(torch::equal(result.model->in->bias, Net().in->bias));  // its learning rate is 0
}

TEST_CASE("LibTorch's optimizers do in a fit what they do by hand", "[loop]") {
  struct Case {
    std::string name;
    std::function<AnyOptimizer(std::vector<Tensor>)> make;
  };
  const std::vector<Case> cases{
      {"SGD",
       [](std::vector<Tensor> p) -> AnyOptimizer {
         return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9));
       }},
      {"Adam",
       [](std::vector<Tensor> p) -> AnyOptimizer {
         return std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(0.01));
       }},
      {"AdamW",
       [](std::vector<Tensor> p) -> AnyOptimizer {
         return std::make_unique<torch::optim::AdamW>(p, torch::optim::AdamWOptions(0.01));
       }},
      {"RMSprop",
       [](std::vector<Tensor> p) -> AnyOptimizer {
         return std::make_unique<torch::optim::RMSprop>(p, torch::optim::RMSpropOptions(0.01));
       }},
      {"Adagrad", [](std::vector<Tensor> p) -> AnyOptimizer {
         return std::make_unique<torch::optim::Adagrad>(p, torch::optim::AdagradOptions(0.05));
       }}};
  for (const Case& c : cases)
    for (const Pair pair : {Pair::fp32, Pair::ddp, Pair::scaled}) {
      CAPTURE(c.name, int(pair));
      Setting setting{.pair = pair};
      setting.options.shuffle = false;
      setting.options.max_epochs = 2;
      torch::manual_seed(setting.options.seed);
      Net net;
      const AnyOptimizer optimizer = c.make(net.parameters());
      const Data data;
      for (int step = 0; step < 12; ++step) {
        const int64_t first = step % 6 * 4;
        optimizer->zero_grad();
        torch::mse_loss(net.forward(data.train.x.slice(0, first, first + 4)), data.train.y.slice(0, first, first + 4))
            .backward();
        optimizer->step();
      }
      Script script = made_by([&](const Parameters& p) { return c.make(p.tensors()); });
      CHECK(torch::equal(weights(fit(setting, script)), flat(net)));  // the same operations, the same bits
    }
}
