// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <dovetail/callback/model_summary.hpp>
#include <dovetail/shard/unit.hpp>

#include <torch/nn/modules.h>

#include <sstream>
#include <string>

namespace {

using namespace dovetail;

struct TwoLayers : torch::nn::Module {
  TwoLayers() {
    features = register_module("features", torch::nn::Sequential(torch::nn::Conv2d(1, 8, 3), torch::nn::ReLU()));
    head = register_module("head", torch::nn::Linear(1200, 10));
    scale = register_parameter("scale", torch::ones({3}));
  }
  torch::nn::Sequential features{nullptr};
  torch::nn::Linear head{nullptr};
  torch::Tensor scale;
};

struct Tied : torch::nn::Module {
  Tied() {
    table = register_module("table", torch::nn::Embedding(10, 4));
    again = register_module("again", table);
  }
  torch::nn::Embedding table{nullptr}, again{nullptr};
};

std::string line_of(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name + " ")) return line;
  return "";
}

}  // namespace

TEST_CASE("the summary is a table of modules with a total", "[callback]") {
  const TwoLayers model;
  CHECK(model_summary(model) ==
        "module      type        parameters  trainable     bytes\n"
        "-------------------------------------------------------\n"
        "scale       parameter            3          3      12 B\n"
        "features    Sequential          80         80     320 B\n"
        "features.0  Conv2d              80         80     320 B\n"
        "features.1  ReLU                 0          0       0 B\n"
        "head        Linear          12,010     12,010  46.9 KiB\n"
        "-------------------------------------------------------\n"
        "total       TwoLayers       12,093     12,093  47.2 KiB\n");
  CHECK(line_of(model_summary(model, {}, 1), "features.0") == "");
  CHECK(line_of(model_summary(model, {}, -1), "features.0") != "");
}

TEST_CASE("the summary tells what is frozen and counts tied parameters once", "[callback]") {
  TwoLayers model;
  for (auto& parameter : model.features->parameters()) parameter.requires_grad_(false);
  CHECK(line_of(model_summary(model), "features ") == "features    Sequential          80          0     320 B");
  CHECK(line_of(model_summary(model), "total") == "total       TwoLayers       12,093     12,013  47.2 KiB");

  const Tied tied;
  const std::string text = model_summary(tied);
  CHECK(line_of(text, "table") == "table   Embedding          40         40  160 B");
  CHECK(line_of(text, "again") == "again   Embedding          40         40  160 B");
  CHECK(line_of(text, "total") == "total   Tied               40         40  160 B");
}

TEST_CASE("sizes are those of the whole model where a strategy has cut it", "[callback]") {
  TwoLayers model;
  const std::string whole = model_summary(model);
  std::vector<Slot> slots;
  for (auto& parameter : model.named_parameters()) {
    Slot& slot = slots.emplace_back();
    slot.shape = parameter.value().sizes().vec();
    slot.model = parameter.value();
    slot.held = torch::empty({2});  // in fp32, as the model was
    if (parameter.key() == "head.weight") parameter.value().set_data(torch::empty({0}, torch::kBFloat16));
  }
  CHECK(model_summary(model, slots) == whole);
  CHECK(model_summary(model) != whole);
}

TEST_CASE("ModelSummary prints when the fit starts, on rank 0", "[callback]") {
  RunContext run{TrainerOptions{}, StrategyTraits{}, PrecisionTraits{}};
  LoopState state{run};
  run.module = std::make_shared<TwoLayers>();
  std::ostringstream out;
  ModelSummary{{.depth = 1, .out = &out}}.on_fit_start(state);
  CHECK(out.str() == model_summary(*run.module, {}, 1));
}

TEST_CASE("type names are as one writes them", "[callback]") {
  using dovetail::detail::pretty_type_name;
  CHECK(pretty_type_name("torch::nn::Conv2dImpl") == "Conv2d");
  CHECK(pretty_type_name("(anonymous namespace)::ConvNet") == "ConvNet");
  CHECK(pretty_type_name("mine::ImplicitImpl") == "mine::Implicit");
  CHECK(pretty_type_name("Impl") == "Impl");
  CHECK(pretty_type_name("WrapperImpl<torch::nn::LinearImpl>") == "Wrapper<Linear>");
  CHECK(pretty_type_name(Unit<torch::nn::Linear>(2, 3)->name()) == "Unit<Linear>");
  CHECK(pretty_type_name(Unit<TwoLayers>()->name()) == "Unit<TwoLayers>");
  CHECK(pretty_type_name("dovetail::detail::UnitImplFor<Block<int, 2>, void>") == "Unit<Block<int, 2>>");
}

TEST_CASE("numbers for people", "[callback]") {
  using namespace dovetail::detail;
  CHECK(grouped(0) == "0");
  CHECK(grouped(999) == "999");
  CHECK(grouped(1000) == "1,000");
  CHECK(grouped(1234567) == "1,234,567");
  CHECK(grouped(-123456) == "-123,456");
  CHECK(byte_text(1023) == "1023 B");
  CHECK(byte_text(1024) == "1.0 KiB");
  CHECK(byte_text(1024 * 1024 - 1) == "1.0 MiB");
  CHECK(byte_text(int64_t{5} << 40) == "5.0 TiB");
  CHECK(duration_text(0.4) == "0:00");
  CHECK(duration_text(59.6) == "1:00");
  CHECK(duration_text(3723) == "1:02:03");
  CHECK(duration_text(std::numeric_limits<double>::infinity()) == "?");
  CHECK(short_number(0.43123456) == "0.4312");
  CHECK(short_number(-std::numeric_limits<double>::quiet_NaN()) == "nan");
}
