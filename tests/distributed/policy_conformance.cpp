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

/// Checks policies one after the other, and says with which exit code each would end.
int check_each(const support::Words& policies) {
  int worst = 0;
  for (const auto& policy : policies) {
    const int code = check(policy);
    worst = std::max(worst, code);
    if (dt::current_ranks().rank == 0) std::cout << policy + " -> " + std::to_string(code) + "\n" << std::flush;
  }
  return worst;
}

struct Expected {
  std::string policy;
  support::Words says = {};  ///< what does not hold; none: all does
};

void expect(support::Checks& checks, int ranks, const std::vector<Expected>& all) {
  const std::string where = " on " + std::to_string(ranks);
  support::Words words{"--ranks", std::to_string(ranks)};
  int code = 0;
  for (const Expected& one : all) {
    words.push_back(one.policy);
    if (!one.says.empty()) code = 1;
  }
  const auto run = support::run_self(words, {}, 200);
  checks.ended(run, code, std::to_string(all.size()) + " policies" + where);
  std::size_t at = 0;
  for (const Expected& one : all) {
    const std::string mark = one.policy + (one.says.empty() ? " -> 0\n" : " -> 1\n");
    const std::size_t end = run.output.find(mark, at);
    checks.that(end != std::string::npos, one.policy + where + ": has another exit code");
    if (end == std::string::npos) continue;
    const std::string printed = run.output.substr(at, end - at);
    for (const auto& text : one.says.empty() ? support::Words{"all hold"} : one.says)
      checks.that(printed.find(text) != std::string::npos, one.policy + where + ": does not say \"" + text + "\"");
    at = end + mark.size();
  }
}

int check_all() {
  support::Checks checks;
  expect(checks, 1, {{"plain"}, {"local-sgd"}, {"coarse"}, {"fsdp"}, {"fp16-mixed"}, {"bf16-true"}, {"master-bf16"}});
  expect(
      checks, 3,
      {{"plain"}, {"local-sgd"}, {"coarse"}, {"sharded-2"}, {"fsdp"}, {"fp16-mixed"}, {"bf16-true"}, {"master-bf16"}});
  expect(checks, 1,
         {{"forgets"},
          {"mute", {"do not say wraps_model: it is never called"}},
          {"secret", {"the run has a loss scaler, but the traits say that there is none"}},
          {"boasts", {"the model's weights are stored as Float, which is not the traits' storage"}}});
  expect(
      checks, 2,
      {{"forgets", {"the ranks end with different parameters", "differs from one device on the concatenated batch by"}},
       {"remembers", {"a second fit with the same Trainer gives other bits"}}});
  return checks.summary();
}

}  // namespace

int main(int argc, char** argv) {
  const dt::Launch launch(argc, argv);
  torch::set_num_threads(1);
  return argc > 1 ? check_each({argv + 1, argv + argc}) : check_all();
}
