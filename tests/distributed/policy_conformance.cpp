// SPDX-License-Identifier: Apache-2.0
// testing/policy_conformance.hpp says yes to policies that keep what they promise, and to others what they do not.
#include <dovetail/launch/launch.hpp>
#include <dovetail/testing/policy_conformance.hpp>

#include "support/run_self.hpp"

namespace {

namespace dt = dovetail;

/// Data parallel in one line.
struct Plain final : dt::StrategyBase {
  static constexpr std::string_view name = "plain";
  static constexpr dt::StrategyTraits traits{};
  void reduce(dt::StrategyContext& run) { run.sum_gradients(); }
};

/// Averages parameters instead of gradients.
struct LocalSGD final : dt::StrategyBase {
  static constexpr std::string_view name = "local-sgd";
  static constexpr dt::StrategyTraits traits{.exact = false};
  void after_step(dt::StrategyContext& run) {
    if (run.step() % 4 == 0)
      for (auto& parameter : run.parameters()) run.communicator().all_reduce_mean(parameter.tensor.detach());
  }
};

/// Says that it is exact, and is not.
struct Forgets final : dt::StrategyBase {
  static constexpr std::string_view name = "forgets";
  static constexpr dt::StrategyTraits traits{};
};

/// Has a hook that its traits do not announce.
struct Mute final : dt::StrategyBase {
  static constexpr std::string_view name = "mute";
  static constexpr dt::StrategyTraits traits{};
  void wrap_model(dt::StrategyContext&) {}
  void reduce(dt::StrategyContext& run) { run.sum_gradients(); }
};

/// Carries something from one fit to the next.
struct Remembers final : dt::StrategyBase {
  static constexpr std::string_view name = "remembers";
  static constexpr dt::StrategyTraits traits{.exact = false};
  std::shared_ptr<double> drift = std::make_shared<double>(1.0);
  void reduce(dt::StrategyContext& run) { run.sum_gradients(); }
  void before_step(dt::StrategyContext& run) {
    for (auto& buffer : run.gradients.buffers) buffer.mul_(*drift);
    *drift *= 1.01;
  }
};

/// Rounds weights to multiples of 2^-20 after each step, on every rank alike.
struct Coarse final : dt::PrecisionBase {
  static constexpr std::string_view name = "coarse";
  static constexpr dt::PrecisionTraits traits{.compute = dt::Format::bf16};
  void after_step(dt::PrecisionContext& run) {
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : run.module->parameters()) parameter.detach().mul_(0x1p20).round_().mul_(0x1p-20);
  }
};

/// Scales the loss without saying so.
struct Secret final : dt::PrecisionBase {
  static constexpr std::string_view name = "secret";
  static constexpr dt::PrecisionTraits traits{};
  void environment(dt::PrecisionContext& run) { run.scaler.emplace(dt::ScalerOptions{.init = 4}); }
};

/// Says bf16 and stores fp32.
struct Boasts final : dt::PrecisionBase {
  static constexpr std::string_view name = "boasts";
  static constexpr dt::PrecisionTraits traits{.compute = dt::Format::bf16, .storage = dt::Format::bf16};
};

int check(const std::string& name) {
  using namespace dt::testing;
  if (name == "plain") return conformance<Plain>();
  if (name == "local-sgd") return conformance<LocalSGD>();
  if (name == "forgets") return conformance<Forgets>();
  if (name == "mute") return conformance<Mute>();
  if (name == "remembers") return conformance<Remembers>();
  if (name == "coarse") return conformance<Coarse>();
  if (name == "secret") return conformance<Secret>();
  if (name == "boasts") return conformance<Boasts>();
  if (name == "sharded-2") return conformance<dt::Sharded<2>>();
  if (name == "fsdp") return conformance<dt::FSDP>();
  if (name == "fp16-mixed") return conformance(dt::FP16Mixed(dt::ScalerOptions{.init = 64}));
  if (name == "bf16-true") return conformance<dt::BF16True>();
  if (name == "master-bf16") return conformance<dt::MasterWeights<dt::BF16>>();
  return 2;
}

int check_all() {
  support::Checks checks;
  const auto expect = [&](const std::string& policy, int ranks, const support::Words& says) {
    const bool good = says.empty();
    const auto run = support::run_self({"--ranks", std::to_string(ranks), policy}, {}, 120);
    checks.ended(run, good ? 0 : 1, policy + " on " + std::to_string(ranks), good ? support::Words{"all hold"} : says);
  };
  for (int ranks : {1, 3})
    for (const char* good :
         {"plain", "local-sgd", "coarse", "sharded-2", "fsdp", "fp16-mixed", "bf16-true", "master-bf16"}) {
      if (ranks == 1 && std::string(good) == "sharded-2") continue;
      expect(good, ranks, {});
    }
  expect("forgets", 1, {});
  expect("forgets", 2,
         {"the ranks end with different parameters", "differs from one device on the concatenated batch by"});
  expect("mute", 1, {"do not say wraps_model: it is never called"});
  expect("remembers", 2, {"a second fit with the same Trainer gives other bits"});
  expect("secret", 1, {"the run has a loss scaler, but the traits say that there is none"});
  expect("boasts", 1, {"the model's weights are stored as Float, which is not the traits' storage"});
  return checks.summary();
}

}  // namespace

int main(int argc, char** argv) {
  const dt::Launch launch(argc, argv);
  torch::set_num_threads(1);
  return argc > 1 ? check(argv[1]) : check_all();
}
