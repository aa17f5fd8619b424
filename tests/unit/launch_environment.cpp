// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <dovetail/launch/environment.hpp>

#include <map>
#include <string>

namespace {

using dovetail::Error;
using dovetail::ExitCode;
using dovetail::Rendezvous;

using Variables = std::map<std::string, std::string>;

std::optional<dovetail::Ranks> read(const Variables& variables) {
  return dovetail::launched_ranks([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

/// The message of the Error(arguments) that reading throws.
std::string complaint(const Variables& variables) {
  try {
    read(variables);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::arguments);
    return error.what();
  }
  return "no error";
}

using Catch::Matchers::Contains;

const Variables torchrun{{"RANK", "2"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "0"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "node7"},
                         {"MASTER_PORT", "29500"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                         {"TORCHELASTIC_RESTART_COUNT", "3"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

}  // namespace

TEST_CASE("an environment without a launcher is one rank", "[launch]") {
  CHECK_FALSE(read({}));
  CHECK_FALSE(read({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"MASTER_ADDR", "x"}}));
  const auto ranks = dovetail::ranks_from_environment([](const char*) -> const char* { return nullptr; });
  CHECK(ranks.rank == 0);
  CHECK(ranks.world_size == 1);
  CHECK(ranks.local_world_size == 1);
  CHECK(ranks.how.kind == Rendezvous::Kind::none);
}

TEST_CASE("torchrun's variables are read", "[launch]") {
  const auto ranks = read(torchrun).value();
  CHECK(ranks.rank == 2);
  CHECK(ranks.world_size == 4);
  CHECK(ranks.local_rank == 0);
  CHECK(ranks.local_world_size == 2);
  CHECK(ranks.how.kind == Rendezvous::Kind::tcp);
  CHECK(ranks.how.address == "node7");
  CHECK(ranks.how.port == 29500);
  CHECK(ranks.how.agent_store);
  CHECK(ranks.how.restart_count == 3);

  const auto plain = read(without(without(torchrun, "TORCHELASTIC_USE_AGENT_STORE"), "TORCHELASTIC_RESTART_COUNT"));
  CHECK_FALSE(plain->how.agent_store);
  CHECK(plain->how.restart_count == 0);
}

TEST_CASE("a store in a file comes before an address", "[launch]") {
  const auto ranks = read(with(torchrun, "DOVETAIL_STORE", "/tmp/meet")).value();
  CHECK(ranks.how.kind == Rendezvous::Kind::file);
  CHECK(ranks.how.file == "/tmp/meet");
  CHECK_THAT(complaint(with(torchrun, "DOVETAIL_STORE", "")), Contains("DOVETAIL_STORE is empty"));
}

TEST_CASE("Open MPI's and MPICH's variables are read, also inside of a SLURM job", "[launch]") {
  const Variables slurm{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "9"}, {"SLURM_STEP_ID", "0"}, {"MASTER_PORT", "4242"}};
  Variables open_mpi = slurm;
  open_mpi.insert({{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  Variables mpich = slurm;
  mpich.insert({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  for (const auto& variables : {open_mpi, mpich}) {
    const auto ranks = read(variables).value();
    CHECK(ranks.rank == 1);
    CHECK(ranks.world_size == 2);
    CHECK(ranks.local_rank == 1);
    CHECK(ranks.how.address == "127.0.0.1");  // all ranks are on this machine
    CHECK(ranks.how.port == 4242);
    CHECK_THAT(complaint(without(variables, "MASTER_PORT")), Contains("MASTER_PORT"));
  }
  open_mpi["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  open_mpi["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  CHECK_THAT(complaint(open_mpi), Contains("OMPI_COMM_WORLD_RANK but not MASTER_ADDR"));
}

TEST_CASE("half an environment is refused, naming what is there and what is missing", "[launch]") {
  CHECK_THAT(complaint({{"RANK", "0"}}), Contains("sets RANK but not WORLD_SIZE"));
  CHECK_THAT(complaint({{"WORLD_SIZE", "2"}}), Contains("sets WORLD_SIZE but not RANK"));
  CHECK_THAT(complaint({{"PMI_RANK", "0"}}), Contains("sets PMI_RANK but not PMI_SIZE"));
  CHECK_THAT(complaint(without(torchrun, "LOCAL_RANK")), Contains("sets LOCAL_WORLD_SIZE but not LOCAL_RANK"));
  CHECK_THAT(complaint(without(without(torchrun, "LOCAL_RANK"), "LOCAL_WORLD_SIZE")),
             Contains("not LOCAL_RANK and LOCAL_WORLD_SIZE"));
  CHECK_THAT(complaint(without(torchrun, "MASTER_ADDR")), Contains("sets RANK but not MASTER_ADDR"));
  CHECK_THAT(complaint(without(torchrun, "MASTER_PORT")), Contains("sets RANK but not MASTER_PORT"));
}

TEST_CASE("local ranks may be missing where all ranks are on one machine", "[launch]") {
  Variables variables{{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "1"}};
  CHECK(read(variables)->local_rank == 1);
  CHECK(read(variables)->local_world_size == 3);
  CHECK(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}})->how.kind == Rendezvous::Kind::none);
}

TEST_CASE("numbers are whole, in range, and nothing else", "[launch]") {
  for (const std::string bad :
       {"", "abc", "-1", "1.5", " 1", "1 ", "0x1", "+1", "2147483648", "18446744073709551616"}) {
    for (const std::string name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"}) {
      CAPTURE(name, bad);
      CHECK_THAT(complaint(with(torchrun, name, bad)), Contains(name + " is \"" + bad + "\""));
    }
  }
  CHECK_THAT(complaint(with(torchrun, "WORLD_SIZE", "0")), Contains("WORLD_SIZE is \"0\""));
  CHECK_THAT(complaint(with(torchrun, "MASTER_PORT", "65536")), Contains("from 1 to 65535"));
  CHECK_THAT(complaint(with(torchrun, "TORCHELASTIC_RESTART_COUNT", "x")),
             Contains("TORCHELASTIC_RESTART_COUNT is \"x\""));
}

TEST_CASE("a rank is less than its world size", "[launch]") {
  CHECK_THAT(complaint(with(torchrun, "RANK", "4")), Contains("RANK is 4, expected less than WORLD_SIZE, which is 4"));
  CHECK_THAT(complaint(with(torchrun, "LOCAL_RANK", "2")),
             Contains("LOCAL_RANK is 2, expected less than LOCAL_WORLD_SIZE, which is 2"));
  CHECK_THAT(complaint(with(torchrun, "LOCAL_WORLD_SIZE", "5")), Contains("LOCAL_WORLD_SIZE is \"5\""));
}
