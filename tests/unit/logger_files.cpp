// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <dovetail/logger/csv.hpp>
#include <dovetail/logger/json_lines.hpp>

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <stdlib.h>

namespace {

using namespace dovetail;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

/// A folder that goes away with the test.
struct Folder {
  std::string path = "/tmp/dovetail-logger-XXXXXX";
  Folder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Folder() { fs::remove_all(path); }
  std::string operator/(const std::string& name) const { return path + "/" + name; }
};

struct Fixture {
  RunContext run{TrainerOptions{}, StrategyTraits{}, PrecisionTraits{}};
  LoopState state{run};
};

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.is_open());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Records and fields as RFC 4180 has them.
std::vector<std::vector<std::string>> read_csv(const std::string& text) {
  std::vector<std::vector<std::string>> records;
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      if (quoted && i + 1 < text.size() && text[i + 1] == '"')
        fields.back() += text[++i];
      else
        quoted = !quoted;
    } else if (!quoted && text[i] == ',') {
      fields.emplace_back();
    } else if (!quoted && text[i] == '\n') {
      records.push_back(std::exchange(fields, std::vector<std::string>(1)));
    } else {
      fields.back() += text[i];
    }
  }
  CHECK(fields == std::vector<std::string>(1));  // nothing behind the last line feed
  return records;
}

Error error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  FAIL("no Error was thrown");
  return {ExitCode::done, ""};
}

const std::vector<double> hard_numbers{
    0.1, 1.0 / 3, 1e-310, 5e-324, 1.7976931348623157e308, -0.0, 123456789012345680.0, 1e22, 0.30000000000000004};

bool same_bits(double a, double b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace

TEST_CASE("metrics.csv has a header and a record per row", "[logger]") {
  const Folder folder;
  Fixture fixture;
  CSVLogger logger(folder.path);
  logger.on_fit_start(fixture.state);
  CHECK(content(logger.path()) == "stage,epoch,step\n");
  logger.log_metrics({"train", 0, 50, {{"loss", 0.5}}});
  CHECK(content(logger.path()) == "stage,epoch,step,loss\ntrain,0,50,0.5\n");  // it is there at once
  logger.log_metrics({"train", 0, 100, {{"loss", 0.25}}});
  logger.log_metrics({"validation", 0, 120, {{"loss", 0.3}, {"accuracy", 0.875}}});
  logger.log_metrics({"train", 1, 150, {{"loss", 0.125}}});
  CHECK(content(logger.path()) ==
        "stage,epoch,step,loss,accuracy\n"
        "train,0,50,0.5,\n"
        "train,0,100,0.25,\n"
        "validation,0,120,0.3,0.875\n"
        "train,1,150,0.125,\n");
  CHECK_FALSE(fs::exists(logger.path() + ".new"));
}

TEST_CASE("metrics.csv quotes names, also when columns come later", "[logger]") {
  const Folder folder;
  CSVLogger logger(folder.path);
  const std::vector<std::string> names{"a,b", "say \"x\"", "two\nlines", "epoch", "plain"};
  for (std::size_t i = 0; i < names.size(); ++i) logger.log_metrics({"train", 0, int64_t(i), {{names[i], double(i)}}});
  const auto records = read_csv(content(logger.path()));
  REQUIRE(records.size() == 6);
  CHECK(records[0] ==
        std::vector<std::string>{"stage", "epoch", "step", "a,b", "say \"x\"", "two\nlines", "logged_epoch", "plain"});
  CHECK(records[1] == std::vector<std::string>{"train", "0", "0", "0", "", "", "", ""});
  CHECK(records[3] == std::vector<std::string>{"train", "0", "2", "", "", "2", "", ""});
  CHECK(records[5] == std::vector<std::string>{"train", "0", "4", "", "", "", "", "4"});
}

TEST_CASE("numbers read back the same from both files", "[logger]") {
  const Folder folder;
  CSVLogger csv(folder.path);
  JSONLinesLogger json(folder.path);
  for (const double number : hard_numbers) {
    csv.log_metrics({"train", 0, 0, {{"x", number}}});
    json.log_metrics({"train", 0, 0, {{"x", number}}});
  }
  const auto records = read_csv(content(csv.path()));
  std::istringstream lines(content(json.path()));
  REQUIRE(records.size() == hard_numbers.size() + 1);
  for (std::size_t i = 0; i < hard_numbers.size(); ++i) {
    std::string line;
    REQUIRE(std::getline(lines, line));
    INFO(line);
    CHECK(same_bits(std::strtod(records[i + 1][3].c_str(), nullptr), hard_numbers[i]));
    CHECK(same_bits(nlohmann::json::parse(line).at("x").get<double>(), hard_numbers[i]));
  }
}

TEST_CASE("numbers that are not finite are written, not lost", "[logger]") {
  const Folder folder;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const MetricsRow row{"train", 0, 1, {{"a", std::nan("")}, {"b", infinity}, {"c", -infinity}, {"d", -std::nan("")}}};
  CSVLogger csv(folder.path);
  csv.log_metrics(row);
  CHECK(content(csv.path()) == "stage,epoch,step,a,b,c,d\ntrain,0,1,nan,inf,-inf,nan\n");
  JSONLinesLogger json(folder.path);
  json.log_metrics(row);
  const auto object = nlohmann::json::parse(content(json.path()));
  CHECK(object.at("a") == "NaN");
  CHECK(object.at("b") == "Infinity");
  CHECK(object.at("c") == "-Infinity");
  CHECK(object.at("d") == "NaN");
}

TEST_CASE("metrics.jsonl has an object per row", "[logger]") {
  const Folder folder;
  Fixture fixture;
  JSONLinesLogger logger(folder.path);
  logger.on_fit_start(fixture.state);
  CHECK(content(logger.path()) == "");
  logger.log_metrics({"train", 0, 50, {{"loss", 0.5}, {"one", 1}}});
  logger.log_metrics(
      {"validation", 1, 60, {{"a \"b\"\n\x01", 1}, {"step", 2}, {"\xC3\xA4", 3}, {"\xFF\xED\xA0\x80", 4}}});
  std::istringstream lines(content(logger.path()));
  std::string first, second;
  REQUIRE(std::getline(lines, first));
  REQUIRE(std::getline(lines, second));
  CHECK(first == R"({"stage":"train","epoch":0,"step":50,"loss":0.5,"one":1.0})");
  const auto object = nlohmann::json::parse(second);
  CHECK(object.at("stage") == "validation");
  CHECK(object.at("epoch") == 1);
  CHECK(object.at("step") == 60);
  CHECK(object.at("a \"b\"\n\x01") == 1);
  CHECK(object.at("logged_step") == 2);
  CHECK(object.at("\xC3\xA4") == 3);
  CHECK(object.at("\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD") == 4);
  CHECK_FALSE(std::getline(lines, first));
}

TEST_CASE("a later run in the same directory loses nothing of the earlier one", "[logger]") {
  const Folder folder;
  Fixture fixture;
  CSVLogger csv(folder.path);
  JSONLinesLogger json(folder.path);
  for (int run = 0; run < 3; ++run) {
    csv.on_fit_start(fixture.state);
    json.on_fit_start(fixture.state);
    csv.log_metrics({"train", 0, run, {{"x", 1}}});
    json.log_metrics({"train", 0, run, {}});
    csv.log_options({{"run", std::to_string(run)}});
    json.log_options({{"run", std::to_string(run)}});  // the same folder and text: written once
  }
  CHECK(content(folder / "metrics.csv") == "stage,epoch,step,x\ntrain,0,2,1\n");
  CHECK(content(folder / "metrics.1.csv") == "stage,epoch,step,x\ntrain,0,0,1\n");
  CHECK(content(folder / "metrics.2.csv") == "stage,epoch,step,x\ntrain,0,1,1\n");
  CHECK(content(folder / "metrics.2.jsonl") == "{\"stage\":\"train\",\"epoch\":0,\"step\":1}\n");
  CHECK(nlohmann::json::parse(content(folder / "options.json")).at("run") == 2);
  CHECK(nlohmann::json::parse(content(folder / "options.2.json")).at("run") == 1);
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator{}) == 9);
}

TEST_CASE("options.json holds numbers and truths as such, the rest as strings", "[logger]") {
  const Folder folder;
  const ResolvedOptions options{{"strategy", "fsdp"}, {"max_epochs", "3"},   {"lr", "1e-3"},
                                {"shuffle", "true"},  {"limit", "-1"},       {"seed", "18446744073709551615"},
                                {"zip", "01234"},     {"clip", "inf"},       {"hex", "0x10"},
                                {"dot", "1."},        {"exponent", "1e"},    {"minus", "-"},
                                {"empty", ""},        {"path", "a\\b \"c\""}};
  write_options(folder / "new/folder", options);
  const std::string text = content(folder / "new/folder/options.json");
  const auto object = nlohmann::ordered_json::parse(text);
  REQUIRE(object.size() == options.size());
  std::size_t i = 0;
  for (const auto& [name, value] : object.items()) {
    INFO(name);
    CHECK(name == options[i].first);
    CHECK((value.is_string() ? value.get<std::string>() : value.dump()) ==
          (name == "lr" ? "0.001" : options[i].second));
    CHECK(value.is_number() == (name == "max_epochs" || name == "lr" || name == "limit" || name == "seed"));
    ++i;
  }
  CHECK(object.at("shuffle").is_boolean());
  CHECK(text.starts_with("{\n  \"strategy\": \"fsdp\",\n  \"max_epochs\": 3,\n"));
  write_options(folder / "none", {});
  CHECK(nlohmann::json::parse(content(folder / "none/options.json")).empty());
}

TEST_CASE("the folder of a run is the given one, or a new one under runs", "[logger]") {
  const Folder folder;
  Communicator alone;
  CHECK(make_run_directory(alone, folder / "a/b/c") == folder / "a/b/c");
  CHECK(fs::is_directory(folder / "a/b/c"));
  CHECK(make_run_directory(alone, folder / "a/b/c") == folder / "a/b/c");
  CHECK(make_run_directory(alone, folder / "a/b/d/") == folder / "a/b/d/");

  const fs::path before = fs::current_path();
  fs::current_path(folder.path);
  const std::string first = make_run_directory(alone, "", "fashion mnist/x"),
                    second = make_run_directory(alone, "", "fashion mnist/x");
  CHECK(std::regex_match(first, std::regex("runs/fashion-mnist-x-\\d{4}-\\d\\d-\\d\\d-1")));
  CHECK(std::regex_match(second,
                         std::regex("runs/fashion-mnist-x-\\d{4}-\\d\\d-\\d\\d-[12]")));  // 1: midnight has passed
  CHECK(first != second);
  CHECK(fs::is_directory(first));
  CHECK(fs::is_directory(second));
  fs::current_path(before);
}

TEST_CASE("what cannot be written is named, with the reason", "[logger]") {
  const Folder folder;
  std::ofstream(folder / "file") << "not a directory";
  Communicator alone;
  for (const std::string& path : {folder / "file", folder / "file/below"}) {
    const Error error = error_of([&] { static_cast<void>(make_run_directory(alone, path)); });
    CHECK(error.code() == ExitCode::arguments);
    CHECK(std::string(error.what()) == "cannot make the directory \"" + path +
                                           "\": Not a directory. Give a place that can be written to and has space.");
  }
  Fixture fixture;
  CSVLogger logger(folder / "file/below");
  CHECK_THAT(error_of([&] { logger.on_fit_start(fixture.state); }).what(), Contains(folder / "file/below"));
  CHECK(error_of([] { CSVLogger(""); }).code() == ExitCode::arguments);
  CHECK(error_of([] { JSONLinesLogger(""); }).code() == ExitCode::arguments);
  CHECK(content(folder / "file") == "not a directory");

  if (fs::exists("/dev/full")) {
    dovetail::detail::OutputFile full("/dev/full");
    CHECK_THAT(error_of([&] { full.write("x"); }).what(), Contains("\"/dev/full\": No space left on device"));
  }
}

TEST_CASE("rank 0 chooses and writes, and all ranks get the same folder or the same error", "[logger]") {
  const Folder folder;
  std::ofstream(folder / "file") << "";
  constexpr int size = 2;
  std::vector<std::string> paths(size), errors(size);
  std::vector<bool> wrote(size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] {
      Fixture fixture;
      auto& run = fixture.run;
      run.comm = Communicator::connect(
          {.rank = rank, .world_size = size, .how = {.kind = Rendezvous::Kind::file, .file = folder / "store"}});
      // Rank 1 asks for another folder: what rank 0 says holds.
      paths[rank] = make_run_directory(run.comm, folder / ("of-rank-" + std::to_string(rank)));
      try {
        static_cast<void>(make_run_directory(run.comm, rank == 0 ? folder / "file" : folder / "fine"));
      } catch (const Error& error) {
        errors[rank] = error.what();
      }
      Observers observers;
      observers.add(CSVLogger(paths[rank]));
      observers.add(JSONLinesLogger(paths[rank]));
      observers.each([&](Observer& o) { o.on_fit_start(fixture.state); });
      observers.each([&](Observer& o) { o.log_metrics(fixture.state, {"train", 0, 1, {{"loss", 0.5}}}); });
      observers.each([&](Observer& o) { o.log_options(fixture.state, {{"rank", std::to_string(rank)}}); });
      run.comm.barrier();
    });
  for (auto& rank : ranks) rank.join();
  CHECK(paths[0] == folder / "of-rank-0");
  CHECK(paths[1] == paths[0]);
  CHECK_THAT(errors[0], Contains("file\": Not a directory"));
  CHECK(errors[1] == errors[0]);
  CHECK_FALSE(fs::exists(folder / "of-rank-1"));
  CHECK(content(paths[0] + "/metrics.csv") == "stage,epoch,step,loss\ntrain,0,1,0.5\n");
  CHECK(content(paths[0] + "/metrics.jsonl") == "{\"stage\":\"train\",\"epoch\":0,\"step\":1,\"loss\":0.5}\n");
  CHECK(content(paths[0] + "/options.json") == "{\n  \"rank\": 0\n}\n");
  CHECK(std::distance(fs::directory_iterator(paths[0]), fs::directory_iterator{}) == 3);
}
