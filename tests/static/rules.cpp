// SPDX-License-Identifier: Apache-2.0

// Every rule with policies of users: they are predicates on traits, so each pair of a violation and its nearest
// neighbour that is fine is written down, and the order of judgement.
#include "check.hpp"

#include <dovetail/core/rules.hpp>
#include <dovetail/core/verdict.hpp>
#include <dovetail/registry.hpp>

using namespace dovetail;

namespace {

template <StrategyTraits given>
struct S : StrategyBase {
  static constexpr std::string_view name = "user-strategy";
  static constexpr StrategyTraits traits = given;
};
template <PrecisionTraits given>
struct P : PrecisionBase {
  static constexpr std::string_view name = "user-precision";
  static constexpr PrecisionTraits traits = given;
};
template <class A, class B>
constexpr std::string_view rule = verdict<A, B>.rule;
template <StrategyTraits s, PrecisionTraits p>
constexpr std::string_view rule_of = verdict<S<s>, P<p>>.rule;

// E001: delays meets wraps-before, whoever wrote them.
constexpr StrategyTraits delays{.delays_optimizer_setup = true, .wraps_model = true};
constexpr PrecisionTraits masters{.wraps_optimizers = true, .wraps_full_parameters = true};
static_assert(rule_of<delays, masters> == "dovetail-E001" && rule<S<delays>, Apex<O2>> == "dovetail-E001");
static_assert(rule<FSDP, P<masters>> == "dovetail-E001");
static_assert(rule_of<delays, PrecisionTraits{.wraps_optimizers = true}> == "");
static_assert(rule_of<StrategyTraits{.wraps_model = true}, masters> == "");
static_assert(verdict<S<delays>, P<masters>>.text == rules::OptimizersTooLate::text);
// ... its other text: the two contradict each other by edges, or one contradicts the fixed order.
constexpr StrategyTraits wraps_after{.wraps_model = true, .order = {{Stage::wrap_model, Stage::bind_schedulers}}};
constexpr PrecisionTraits wants_before{.order = {{Stage::bind_schedulers, Stage::wrap_model}}};
static_assert(verdict<S<wraps_after>, P<wants_before>>.text == rules::OrdersContradict::text);
static_assert(rule_of<wraps_after, PrecisionTraits{}> == "" &&
              rule_of<StrategyTraits{.wraps_model = true}, wants_before> == "");
// ... and where both traits hold but the Precision wraps the shard, the first text would be a lie.
constexpr PrecisionTraits local_masters{.wraps_optimizers = true,
                                        .order = {{Stage::wrap_optimizers, Stage::wrap_model}}};
static_assert(verdict<S<delays>, P<local_masters>>.text == rules::OrdersContradict::text);

// E002: an order exists, the masters would be of tensors that the rank does not own.
constexpr StrategyTraits shards(Shards what, bool delayed = false) {
  return {.delays_optimizer_setup = delayed, .wraps_model = true, .shards = what};
}
static_assert(rule_of<shards(Shards::optimizer_state), masters> == "dovetail-E002");
static_assert(rule_of<shards(Shards::gradients), masters> == "dovetail-E002");
static_assert(rule_of<shards(Shards::parameters), masters> == "dovetail-E002");
static_assert(rule_of<shards(Shards::nothing), masters> == "");
static_assert(rule_of<shards(Shards::optimizer_state), PrecisionTraits{.wraps_optimizers = true}> == "");

// E003: a rank that skips alone parts from the others, unless all see the same gradient.
constexpr PrecisionTraits local{.scaler = Scaler::local, .compute = Format::fp16};
constexpr PrecisionTraits agreed{.scaler = Scaler::collective, .compute = Format::fp16};
static_assert(rule_of<shards(Shards::gradients), local> == "dovetail-E003");
static_assert(rule_of<shards(Shards::parameters, true), local> == "dovetail-E003" &&
              rule<FSDP, P<local>> == "dovetail-E003");
static_assert(rule_of<shards(Shards::optimizer_state), local> == "" && rule<DDP, P<local>> == "");
static_assert(rule_of<shards(Shards::parameters, true), agreed> == "");

// E004: only fp16 needs a scale.
constexpr PrecisionTraits scaled(Format compute, Scaler scaler = Scaler::collective) {
  return {.scaler = scaler, .compute = compute};
}
static_assert(rule_of<StrategyTraits{}, scaled(Format::bf16)> == "dovetail-E004");
static_assert(rule_of<StrategyTraits{}, scaled(Format::fp32)> == "dovetail-E004");
static_assert(rule_of<StrategyTraits{}, scaled(Format::fp64, Scaler::local)> == "dovetail-E004");
static_assert(rule_of<StrategyTraits{}, scaled(Format::fp16)> == "");
static_assert(rule_of<StrategyTraits{}, scaled(Format::bf16, Scaler::none)> == "");

// E011: traits that contradict each other, and edges on stages that a policy lacks.
static_assert(rule_of<StrategyTraits{.delays_optimizer_setup = true}, PrecisionTraits{}> == "dovetail-E011");
static_assert(rule_of<StrategyTraits{}, PrecisionTraits{.wraps_full_parameters = true}> == "dovetail-E011");
static_assert(rule_of<StrategyTraits{.order = {{Stage::wrap_model, Stage::restore}}}, PrecisionTraits{}> ==
              "dovetail-E011");
static_assert(rule_of<StrategyTraits{.order = {{Stage::build_model, Stage::rebuild_optimizers}}}, PrecisionTraits{}> ==
              "dovetail-E011");
static_assert(rule_of<StrategyTraits{}, PrecisionTraits{.order = {{Stage::wrap_optimizers, Stage::restore}}}> ==
              "dovetail-E011");
// ... but a stage that only the partner can have may be absent.
static_assert(rule_of<StrategyTraits{.order = {{Stage::wrap_optimizers, Stage::restore}}}, PrecisionTraits{}> == "");
static_assert(rule_of<StrategyTraits{}, PrecisionTraits{.order = {{Stage::wrap_model, Stage::restore}}}> == "");

// E012: for any two types, without an error of its own.
struct NotAPolicy {};
struct NoName : StrategyBase {
  static constexpr StrategyTraits traits{};
};
struct EmptyName : StrategyBase {
  static constexpr std::string_view name = "";
  static constexpr StrategyTraits traits{};
};
struct NoTraits : PrecisionBase {
  static constexpr std::string_view name = "no-traits";
};
struct WrongTraits : PrecisionBase {
  static constexpr std::string_view name = "wrong-traits";
  static constexpr StrategyTraits traits{};
};
struct VariableTraits : StrategyBase {
  static constexpr std::string_view name = "variable-traits";
  static inline StrategyTraits traits{};
};
struct WrongHook : StrategyBase {
  static constexpr std::string_view name = "wrong-hook";
  static constexpr StrategyTraits traits{};
  void reduce(StrategyContext&, int);
};
struct PrivateHook : PrecisionBase {
  static constexpr std::string_view name = "private-hook";
  static constexpr PrecisionTraits traits{};

 private:
  void wrap_optimizers(PrecisionContext&) {}
};
struct TemplateHook : StrategyBase {
  static constexpr std::string_view name = "template-hook";
  static constexpr StrategyTraits traits{};
  template <class Context>
  void reduce(Context& run);
};
struct MoveOnly : StrategyBase {
  static constexpr std::string_view name = "move-only";
  static constexpr StrategyTraits traits{};
  MoveOnly() = default;
  MoveOnly(MoveOnly&&) = default;
};
struct GuardOfNothing : PrecisionBase {
  static constexpr std::string_view name = "guard-of-nothing";
  static constexpr PrecisionTraits traits{};
  void forward_guard(PrecisionContext&) {}
};
struct MemberTraits : StrategyBase {
  static constexpr std::string_view name = "member-traits";
  StrategyTraits traits{};
};
struct MemberName : PrecisionBase {
  std::string_view name = "member-name";
  static constexpr PrecisionTraits traits{};
};
template <class A, class B, class Clause>
constexpr bool refused_by = verdict<A, B>.rule == "dovetail-E012" && verdict<A, B>.text == Clause::text;
static_assert(refused_by<FP32, DDP, rules::Swapped> && refused_by<Apex<O2>, FSDP, rules::Swapped>);
static_assert(refused_by<DDP, BF16, rules::FormatAsPrecision> && refused_by<DDP, float, rules::FormatAsPrecision>);
static_assert(refused_by<DDP, O1, rules::LevelAsPrecision>);
static_assert(refused_by<NotAPolicy, FP32, rules::NotAStrategy> && refused_by<FP32, FP32, rules::NotAStrategy>);
static_assert(refused_by<void, FP32, rules::NotAStrategy> && refused_by<DDP&, FP32, rules::NotAStrategy>);
static_assert(refused_by<DDP, DDP, rules::NotAPrecision> && refused_by<DDP, NotAPolicy, rules::NotAPrecision>);
static_assert(refused_by<DDP, FP32*, rules::NotAPrecision>);
static_assert(refused_by<Sharded<3>, FP32, rules::StrategyArgument>);
static_assert(refused_by<DDP, Apex<BF16>, rules::PrecisionArgument>);
static_assert(refused_by<DDP, MasterWeights<float>, rules::PrecisionArgument>);
static_assert(refused_by<NoName, FP32, rules::StrategyUnnamed> && refused_by<EmptyName, FP32, rules::StrategyUnnamed>);
static_assert(refused_by<DDP, NoTraits, rules::PrecisionTraitsMissing>);
static_assert(refused_by<DDP, WrongTraits, rules::PrecisionTraitsMissing>);
static_assert(refused_by<VariableTraits, FP32, rules::StrategyTraitsMissing>);
static_assert(refused_by<WrongHook, FP32, rules::StrategyHookUncallable>);
static_assert(refused_by<DDP, PrivateHook, rules::PrecisionHookUncallable>);
static_assert(refused_by<DDP, GuardOfNothing, rules::ForwardGuardUncallable>);
static_assert(refused_by<MemberTraits, FP32, rules::StrategyTraitsMissing>);
static_assert(refused_by<DDP, MemberName, rules::PrecisionUnnamed>);
static_assert(uncallable_strategy_hook<WrongHook> == PolicyHook::reduce);
static_assert(uncallable_precision_hook<PrivateHook> == PolicyHook::wrap_optimizers);
static_assert(compatible<TemplateHook, FP32>);
static_assert(refused_by<MoveOnly, FP32, rules::StrategyNotCopyable>);

// E022 on policies: a name that is almost a hook's, unless the hook is there too.
struct NearHook : StrategyBase {
  static constexpr std::string_view name = "near-hook";
  static constexpr StrategyTraits traits{};
  void post_step(StrategyContext&) {}
};
struct HelperOfHook : NearHook {
  void after_step(StrategyContext& run) { post_step(run); }
};
struct InheritsHook final : HelperOfHook {};
struct PrivateNear : PrecisionBase {
  static constexpr std::string_view name = "private-near";
  static constexpr PrecisionTraits traits{};

 private:
  void wrap_optimizer(PrecisionContext&) {}
};
struct FinalNear final : PrecisionBase {
  static constexpr std::string_view name = "final-near";
  static constexpr PrecisionTraits traits{};
  void foward_guard(PrecisionContext&) {}
};
template <class A, class B, class Clause>
constexpr bool almost = verdict<A, B>.rule == "dovetail-E022" && verdict<A, B>.text == Clause::text;
static_assert(almost<NearHook, FP32, rules::StrategyAlmostHook> && !accepts<NearHook, FP32>);
static_assert(compatible<HelperOfHook, FP32> && compatible<InheritsHook, FP32>);
static_assert(almost<DDP, PrivateNear, rules::PrecisionAlmostHook>);

// Hooks that only one of the policies has, and some strategies only.
template <class Base, class Traits>
struct Empty : Base {
  static constexpr std::string_view name = "empty";
  static constexpr Traits traits{};
};
using EmptyStrategy = Empty<StrategyBase, StrategyTraits>;
using EmptyPrecision = Empty<PrecisionBase, PrecisionTraits>;
struct AttachesNothing : EmptyStrategy {
  void attach_gradients() {}
};
struct FinishesPrivately : EmptyStrategy {
 private:
  void finish_forward(StrategyContext&) {}
};
struct TellsNumber : EmptyStrategy {
  long traffic(const StepShape&) const;
};
struct TellsOfModel : EmptyStrategy {
  StepTraffic traffic(int&) const;
};
struct Tells : EmptyStrategy {
  StepTraffic traffic(const StepShape&) const;
  void attach_gradients(StrategyContext&);
  void finish_forward(StrategyContext&);
};
struct Guards : EmptyStrategy {
  int forward_guard(StrategyContext&);
};
struct ConvertsModel : EmptyStrategy {
  void convert_model(StrategyContext&);
};
struct WrapsOptimizers : EmptyStrategy {
 private:
  int wrap_optimizers = 0;
};
struct Attaches : EmptyPrecision {
  void attach_gradients(PrecisionContext&);
};
struct TellsNobody : EmptyPrecision {
  int traffic() const;
};
struct Finishes : EmptyPrecision {
  template <class Context>
  void finish_forward(Context&);
};
struct AfterForward : EmptyStrategy {
  void after_forward(StrategyContext&);
};
static_assert(uncallable_strategy_hook<AttachesNothing> == PolicyHook::attach_gradients);
static_assert(uncallable_strategy_hook<FinishesPrivately> == PolicyHook::finish_forward);
static_assert(refused_by<AttachesNothing, FP32, rules::StrategyHookUncallable>);
static_assert(refused_by<TellsNumber, FP32, rules::TrafficUncallable>);
static_assert(refused_by<TellsOfModel, FP32, rules::TrafficUncallable>);
static_assert(compatible<EmptyStrategy, FP32> && compatible<Tells, FP32> && compatible<DDP, EmptyPrecision>);
static_assert(almost<Guards, FP32, rules::StrategyAlmostHook>);
static_assert(almost<ConvertsModel, FP32, rules::StrategyAlmostHook>);
static_assert(almost<WrapsOptimizers, FP32, rules::StrategyAlmostHook>);
static_assert(almost<AfterForward, FP32, rules::StrategyAlmostHook>);
static_assert(almost<DDP, Attaches, rules::PrecisionAlmostHook>);
static_assert(almost<DDP, Finishes, rules::PrecisionAlmostHook>);
static_assert(almost<DDP, TellsNobody, rules::PrecisionAlmostHook>);
static_assert(almost<DDP, FinalNear, rules::PrecisionAlmostHook>);

// The order of judgement: E012, E011, E001, E002, E003, E004. Each violates its own rule and every later one it can.
constexpr PrecisionTraits everything{.wraps_optimizers = true, .wraps_full_parameters = true, .scaler = Scaler::local};
static_assert(rule<NoName, P<everything>> == "dovetail-E012");
static_assert(rule_of<StrategyTraits{.delays_optimizer_setup = true, .shards = Shards::parameters}, everything> ==
              "dovetail-E011");
static_assert(rule_of<shards(Shards::parameters, true), everything> == "dovetail-E001");
static_assert(rule_of<shards(Shards::parameters), everything> == "dovetail-E002");
static_assert(rule_of<shards(Shards::parameters), PrecisionTraits{.scaler = Scaler::local}> == "dovetail-E003");
static_assert(rule_of<StrategyTraits{}, PrecisionTraits{.scaler = Scaler::local}> == "dovetail-E004");

// E005, E006, E008: with the optimizers' types.
struct Elementwise {};
struct Whole {};
struct NeedsClosure {};
struct One : StrategyBase {
  static constexpr std::string_view name = "one";
  static constexpr StrategyTraits traits{.cuts_tensors = true, .max_optimizers = 1};
};

}  // namespace

template <>
inline constexpr OptimizerTraits dovetail::optimizer_traits<Elementwise>{.elementwise = true};
template <>
inline constexpr OptimizerTraits dovetail::optimizer_traits<NeedsClosure>{.elementwise = true,
                                                                          .requires_closure = true};

namespace {

template <class A, class B, class... Optimizers>
constexpr std::string_view fit_rule = fit_verdict<A, B, Optimizers...>.rule;
static_assert(fit_rule<SingleDevice, FP32, NeedsClosure> == "" && fit_rule<DDP, BF16Mixed, NeedsClosure> == "");
static_assert(fit_rule<DDP, FP16Mixed, NeedsClosure> == "dovetail-E005");
static_assert(fit_rule<FSDP, FP32, NeedsClosure> == "dovetail-E005" &&
              fit_rule<DDP, Apex<O1>, NeedsClosure> == "dovetail-E005");
static_assert(fit_rule<DDP, FP16Mixed, Elementwise, NeedsClosure> == "dovetail-E005");
static_assert(fit_rule<DDP, FP32, Whole> == "" && fit_rule<SingleDevice, Apex<O2>, Whole> == "");
static_assert(fit_rule<FSDP, FP32, Whole> == "dovetail-E006" && fit_rule<Sharded<1>, FP32, Whole> == "");
static_assert(fit_rule<FSDP, FP32, Elementwise, Elementwise> == "" &&
              fit_rule<FSDP, FP32, Elementwise, Whole> == "dovetail-E006");
static_assert(fit_rule<One, FP32, Elementwise> == "" &&
              fit_rule<One, FP32, Elementwise, Elementwise> == "dovetail-E008");
static_assert(fit_rule<One, FP32, Whole, NeedsClosure> == "dovetail-E005" &&
              fit_rule<One, FP32, Whole, Whole> == "dovetail-E006");
static_assert(fit_rule<FSDP, FP32, const Elementwise&> == "", "references and const do not matter");
static_assert(accepts<FSDP, FP32, Elementwise> && !accepts<FSDP, FP32, Whole> && !accepts<FSDP, Apex<O2>, Elementwise>);
static_assert(!accepts<FP32, DDP, Elementwise>);

// E007, E009, E010: with options.
constexpr std::string_view start(StrategyTraits s, PrecisionTraits p, StartRequest request) {
  return start_verdict(s, p, request).rule;
}
static_assert(start({}, {}, {.clip = ClipKind::norm}) == "" && start({}, {}, {}) == "");
constexpr StrategyTraits only_value{.clips = {.norm = false}}, only_norm{.clips = {.value = false}};
constexpr StrategyTraits no_clips{.clips = {.norm = false, .value = false}};
static_assert(start(only_value, {}, {.clip = ClipKind::norm}) == "dovetail-E007" &&
              start(only_value, {}, {.clip = ClipKind::value}) == "");
static_assert(start(only_norm, {}, {.clip = ClipKind::value}) == "dovetail-E007" &&
              start(only_norm, {}, {.clip = ClipKind::norm}) == "");
static_assert(start(no_clips, {}, {.clip = ClipKind::norm}) == "dovetail-E007" && start(no_clips, {}, {}) == "");
static_assert(start({.resumable = false}, {}, {.resume = true}) == "dovetail-E009" &&
              start({.resumable = false}, {}, {}) == "");
static_assert(start({}, {.resumable = false}, {.resume = true}) == "dovetail-E009" &&
              start({}, {}, {.resume = true}) == "");
constexpr StartRequest foreign{.clip = ClipKind::value, .optimizer_unscales_itself = true};
static_assert(start({}, agreed, foreign) == "dovetail-E010" && start({}, {}, foreign) == "");
static_assert(start({}, agreed, {.optimizer_unscales_itself = true}) == "" &&
              start({}, agreed, {.clip = ClipKind::norm}) == "");
static_assert(start({.clips = {.value = false}, .resumable = false}, agreed, {ClipKind::value, true, true}) ==
              "dovetail-E007");

}  // namespace

int main() {
  check::that(One::name == "one" && accepts<One, FP32, Elementwise>, "a strategy that takes one optimizer");
  check::contains(start_verdict(only_value, {}, {.clip = ClipKind::norm}).text, "Use clip_value");
  check::contains(start_verdict(only_norm, {}, {.clip = ClipKind::value}).text, "Use clip_norm");
  check::contains(start_verdict(no_clips, {}, {.clip = ClipKind::value}).text,
                  "cannot clip gradients. Use no gradient_clip");
  check::contains(start_verdict({}, {.resumable = false}, {.resume = true}).text, "its Precision is not resumable");
  check::contains(start_verdict({.resumable = false}, {}, {.resume = true}).text, "its Strategy is not resumable");
  unsigned number = 0;
  for (const RuleRow& row : rule_rows) {
    char id[32];
    std::snprintf(id, sizeof id, "dovetail-E%03u", ++number);
    check::that(row.id == id && !row.refused.empty(), id);
  }
  check::that(number == 12, "twelve rules");
  std::puts(
      "T48 T51 P54 P58 E001-E012 on user policies, each with a neighbour that is fine, and the order of judgement");
  return check::summary("rules");
}
