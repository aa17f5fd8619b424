// SPDX-License-Identifier: Apache-2.0
// Real processes that start, fail, hang and are killed: what the launcher returns, says and leaves behind.
#include <dovetail/comm/communicator.hpp>
#include <dovetail/launch/launch.hpp>

#include <c10/util/Exception.h>

#include <fstream>
#include <thread>

#include "support/run_self.hpp"

namespace {

using dovetail::Communicator;
using dovetail::Error;
using dovetail::ExitCode;
using support::Ended;
using support::run_self;
using support::Words;

/// Takes part in collectives until they fail; the time-out is short for the tests that need one.
[[noreturn]] void work_on(Communicator& all) {
  const torch::Tensor tensor = torch::ones({1000});
  while (true) all.all_reduce(tensor);
}

/// What one rank does, by name. `victim` says whether this rank is the one that something happens to.
int rank_main(const std::string& act, bool victim, Words rest) {
  const auto& ranks = dovetail::current_ranks();
  if (act == "hello") {
    std::string line = "rank " + std::to_string(ranks.rank) + " of " + std::to_string(ranks.world_size) + ", local " +
                       std::to_string(ranks.local_rank) + " of " + std::to_string(ranks.local_world_size) +
                       ", threads " + std::getenv("OMP_NUM_THREADS") + ", arguments";
    for (const auto& word : rest) line += " " + word;
    std::cout << line + "\n" << std::flush;
    return 0;
  }
  if (act == "throw-before-meeting" && victim) throw Error(ExitCode::data, "the file is cut");
  Communicator all = Communicator::connect(ranks, {.step = std::chrono::seconds(act == "stop" ? 2 : 30)});
  std::cout << "connected\n" << std::flush;
  if (act == "meet") {
    torch::Tensor sum = torch::full({1}, 1.0 + ranks.rank);
    all.all_reduce(sum);
    std::cout << "sum " + std::to_string(sum.item<int>()) + "\n" << std::flush;
    if (!rest.empty()) {  // a port: which addresses is it served on?
      char port[8];
      std::snprintf(port, sizeof port, ":%04X", std::atoi(rest[0].c_str()));
      for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
        std::ifstream lines(table);
        for (std::string line, number, local, remote, state; std::getline(lines, line);) {
          std::istringstream(line) >> number >> local >> remote >> state;
          if (ranks.rank == 0 && state == "0A" && local.ends_with(port)) std::cout << "listens on " + local + "\n";
        }
      }
    }
    all.barrier();  // rank 0 must serve the store until all are through
    return 0;
  }
  if (act == "save-on-signal") {
    static volatile std::sig_atomic_t asked = 0;
    std::signal(SIGTERM, [](int) { asked = 1; });
    std::cout << "ready\n" << std::flush;
    while (true) {  // agreed on, so that all ranks stop at the same step
      torch::Tensor stop = torch::full({1}, static_cast<double>(asked));
      all.all_reduce(stop);
      if (stop.item<double>() > 0) return static_cast<int>(ExitCode::preempted);
    }
  }
  if (victim) {
    if (act == "throw") throw Error(ExitCode::data, "the file is cut");
    if (act == "throw-foreign") throw std::runtime_error("boom");
    if (act == "throw-torch") TORCH_CHECK(false, "shapes differ");
    if (act == "throw-number") throw 7;
    if (act == "throw-in-thread") std::thread([] { throw Error(ExitCode::numeric, "loss is NaN"); }).join();
    if (act == "kill") ::raise(SIGKILL);
    if (act == "abort") std::abort();
    if (act == "stop") ::raise(SIGSTOP);
    if (act == "leave") std::_Exit(0);
    if (act == "return") return 3;
    if (act == "throw-while-others-hang" || act == "throw-while-others-ignore") {
      all.barrier();
      throw Error(ExitCode::data, "the file is cut");
    }
  }
  if (act == "throw-while-others-hang" || act == "throw-while-others-ignore") {
    if (act == "throw-while-others-ignore") std::signal(SIGTERM, SIG_IGN);
    all.barrier();
    while (true) ::pause();
  }
  work_on(all);
}

const std::string peer_gone = "because another rank is gone";

void check_starting(support::Checks& check) {
  const std::string cores = std::to_string(std::max(1, dovetail::detail::usable_cores() / 2));
  // ctest sets OMP_NUM_THREADS, which is kept then.
  const Ended hello = run_self({"--ranks", "2", "hello", "-", "a", "--b=c"});
  check.ended(hello, 0, "--ranks 2 with arguments",
              {"rank 0 of 2, local 0 of 2, threads 1, arguments a --b=c\n",
               "rank 1 of 2, local 1 of 2, threads 1, arguments a --b=c\n"});
  ::unsetenv("OMP_NUM_THREADS");
  check.ended(run_self({"hello", "-", "--ranks=2"}), 0, "cores are shared out", {"threads " + cores + ", arguments\n"});
  ::setenv("OMP_NUM_THREADS", "1", 1);
  check.ended(run_self({"--ranks", "1", "hello", "-"}), 0, "--ranks 1", {"rank 0 of 1, local 0 of 1"});
  check.ended(run_self({"--ranks", "3", "meet", "-"}), 0, "three ranks meet", {"sum 6"});

  for (const Words& bad :
       {Words{"--ranks", "0"}, Words{"--ranks", "-1"}, Words{"--ranks", "abc"}, Words{"--ranks"}, Words{"--ranks="}}) {
    check.ended(run_self(bad), 2, "bad: " + bad.back(), {"dovetail: --ranks "});
  }
}

void check_failing(support::Checks& check) {
  const auto run = [](const std::string& act, const std::string& victim, int ranks = 2) {
    return run_self({"--ranks", std::to_string(ranks), act, victim}, {}, 30);
  };
  // These wait for a time-out, or for the grace that the launcher gives: the others run meanwhile.
  support::Program leaves({"--ranks", "2", "leave", "1"}), stops({"--ranks", "2", "stop", "1"}),
      ignore({"--ranks", "2", "throw-while-others-ignore", "0"});
  for (const std::string victim : {"0", "1", "2"}) {
    const Ended thrown = run("throw", victim, 3);
    check.ended(thrown, 5, "rank " + victim + " of 3 throws Error(data)",
                {"dovetail: [rank " + victim + "] the file is cut\n",
                 "dovetail: rank " + victim + " ended with exit code 5; the run of 3 ranks is over.\n"});
    const Ended killed = run("kill", victim, 3);
    check.ended(killed, 137, "rank " + victim + " of 3 is killed",
                {"dovetail: rank " + victim + " was ended by signal 9 (Killed)"});
  }
  check.ended(run("throw-before-meeting", "1"), 5, "a rank throws before all met", {"[rank 1] the file is cut"});
  check.ended(run("throw-foreign", "1"), 1, "a foreign exception", {"dovetail: [rank 1] boom\n"});
  check.ended(run("throw-torch", "0"), 1, "an exception of LibTorch, without its stack", {"[rank 0] shapes differ\n"});
  check.ended(run("throw-number", "0"), 1, "something thrown that is no exception", {"no std::exception"});
  check.ended(run("throw-in-thread", "1"), 6, "an exception in a thread", {"[rank 1] loss is NaN\n"});
  check.ended(run("abort", "1"), 134, "a rank aborts");
  check.ended(run("return", "1"), 3, "a rank returns 3");
  check.ended(run("throw-while-others-hang", "1"), 5, "the others are in no collective", {"[rank 1] the file is cut"});
  check.ended(leaves.end(30), 8, "a rank leaves too early", {peer_gone});
  check.ended(ignore.end(30), 5, "the others ignore SIGTERM", {"[rank 0] the file is cut"});
  check.ended(stops.end(30), 7, "a rank is stopped", {"all_reduce on rank 0 of 2 waited 2000 ms"});
  // The victim's end must never be taken for the cause, whoever is seen first.
  int right = 0;
  for (int i = 0; i < 4; ++i) right += run("throw", i % 2 == 0 ? "0" : "1").code == 5;
  check.that(right == 4, "4 times the code of the culprit, not of the victim: " + std::to_string(right));
}

void check_signals(support::Checks& check) {
  const auto both = [](const std::string& word) {
    return [word](const std::string& output) { return Ended{.output = output}.times(word) == 2; };
  };
  {
    support::Program program({"--ranks", "2", "work", "-"});
    check.that(program.read_until(both("connected\n"), 30), "two ranks connect");
    ::kill(program.pid(), SIGTERM);
    check.ended(program.end(30), 143, "SIGTERM to the launcher ends the ranks");
  }
  {
    support::Program program({"--ranks", "2", "save-on-signal", "-"});
    check.that(program.read_until(both("ready\n"), 30), "two ranks are ready");
    ::kill(program.pid(), SIGTERM);
    check.ended(program.end(30), 75, "ranks that save on SIGTERM are let finish");
  }
  {
    support::Program program({"--ranks", "2", "work", "-"});
    check.that(program.read_until(both("connected\n"), 30), "two ranks connect");
    ::kill(program.pid(), SIGKILL);
    Ended ended = program.end(30);
    ended.left_files.clear();  // nobody is left to remove the store
    check.ended(ended, 137, "ranks die with a launcher that is killed");
  }
}

/// Starts `ranks` processes as a launcher other than ours would.
std::vector<Ended> start_by_hand(int ranks, const Words& arguments, const std::function<Words(int)>& environment) {
  std::vector<std::unique_ptr<support::Program>> programs;
  for (int r = 0; r < ranks; ++r) programs.push_back(std::make_unique<support::Program>(arguments, environment(r)));
  std::vector<Ended> all;
  for (auto& program : programs) all.push_back(program->end(60));
  return all;
}

int free_port() {
  const int socket = dovetail::detail::listen_on("127.0.0.1", 0);
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(socket);
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

void check_other_launchers(support::Checks& check) {
  const auto text = [](int number) { return std::to_string(number); };
  const auto torchrun = [&](int rank, int port) {
    return Words{"RANK=" + text(rank), "WORLD_SIZE=2",          "LOCAL_RANK=" + text(rank),
                 "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=localhost", "MASTER_PORT=" + text(port)};
  };
  int port = free_port();
  auto runs = start_by_hand(2, {"meet", "-", text(port)}, [&](int rank) { return torchrun(rank, port); });
  for (const auto& run : runs) check.ended(run, 0, "torchrun's variables, rank 0 serves the store", {"sum 3"});
  char loopback[32];
  std::snprintf(loopback, sizeof loopback, "listens on 0100007F:%04X", port);
  check.that(runs[0].says(loopback) && runs[0].times("listens on") == 1,
             "the store listens on loopback and nowhere else: " + runs[0].output);

  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  auto agent = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  int64_t keys = agent->getNumKeys();
  for (const int attempt : {0, 1}) {  // the second finds the keys of the first in the same store
    runs = start_by_hand(2, {"meet", "-"}, [&](int rank) {
      Words words = torchrun(rank, agent->getPort());
      words.insert(words.end(), {"TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RESTART_COUNT=" + text(attempt)});
      return words;
    });
    for (const auto& run : runs) check.ended(run, 0, "the agent serves the store, attempt " + text(attempt), {"sum 3"});
    const int64_t known = std::exchange(keys, agent->getNumKeys());
    check.that(keys > known, "an attempt has keys of its own");
  }

  port = free_port();
  runs = start_by_hand(2, {"meet", "-"}, [&](int rank) {
    return Words{"OMPI_COMM_WORLD_RANK=" + text(rank), "OMPI_COMM_WORLD_SIZE=2",
                 "OMPI_COMM_WORLD_LOCAL_RANK=" + text(rank), "OMPI_COMM_WORLD_LOCAL_SIZE=2",
                 "MASTER_PORT=" + text(port)};
  });
  for (const auto& run : runs) check.ended(run, 0, "Open MPI's variables", {"sum 3"});

  const std::string error_file = "/tmp/dovetail-error-" + text(::getpid()) + ".json";
  port = free_port();
  runs = start_by_hand(2, {"throw", "0"}, [&](int rank) {
    Words words = torchrun(rank, port);
    if (rank == 0) words.push_back("TORCHELASTIC_ERROR_FILE=" + error_file);
    return words;
  });
  check.ended(runs[0], 5, "a failing rank under torchrun", {"[rank 0] the file is cut"});
  check.ended(runs[1], 8, "its peer under torchrun", {peer_gone});
  std::string json;
  std::getline(std::ifstream(error_file), json);
  check.that(json.starts_with("{\"message\": \"the file is cut\", \"timestamp\": 1"), "the error file: " + json);
  std::filesystem::remove(error_file);

  check.ended(run_self({"hello", "-"}, {"RANK=0"}), 2, "RANK alone", {"dovetail: the environment sets RANK but not"});
  check.ended(run_self({"hello", "-"}, {"RANK=2", "WORLD_SIZE=2"}), 2, "rank too large", {"RANK is 2"});
  check.ended(run_self({"--ranks", "3", "hello", "-"}, torchrun(0, port)), 2, "--ranks against the launcher",
              {"--ranks 3 contradicts the launcher's 2 ranks"});
  check.ended(run_self({"--ranks", "2", "hello", "-"}, torchrun(0, port)), 0, "--ranks as the launcher",
              {"rank 0 of 2"});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    ::alarm(120);
    dovetail::Launch launch(argc, argv);
    const std::string victim = argc > 2 ? argv[2] : "-";
    return rank_main(argv[1], victim == std::to_string(launch.ranks().rank), {argv + std::min(argc, 3), argv + argc});
  }
  ::alarm(600);
  ::setenv("OMP_NUM_THREADS", "1", 1);
  support::Checks check;
  check_starting(check);
  check_failing(check);
  check_signals(check);
  check_other_launchers(check);
  return check.summary();
}
