// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <concepts>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <dovetail/launch/error.hpp>

namespace dovetail {

/// How the ranks of a run find each other.
struct Rendezvous {
  enum class Kind { none, file, tcp, recorded };  ///< recorded: nobody else is there, see testing/recorded_rank.hpp

  Kind kind = Kind::none;
  std::string file = {};     ///< Kind::file: a path that every rank can open
  std::string address = {};  ///< Kind::tcp: host name or address of the store
  int port = 0;              ///< Kind::tcp
  bool agent_store = false;  ///< Kind::tcp: torchrun's agent serves the store already, so no rank does
  int restart_count = 0;     ///< Kind::tcp: attempt number; keys of earlier attempts are not seen
};

/// Who this process is among the ranks of a run. The default is a run of one rank.
struct Ranks {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  ///< rank on this machine
  int local_world_size = 1;
  Rendezvous how = {};
};

namespace detail {

template <class F>
concept GetEnv = requires(const F& f, const char* name) {
  { f(name) } -> std::convertible_to<const char*>;
};

/// Reads numbers from variables of the environment; every complaint names the variable and its value.
template <GetEnv F>
class EnvironmentReader {
 public:
  explicit EnvironmentReader(const F& get) : get_(get) {}

  [[nodiscard]] bool has(const char* name) const { return get_(name) != nullptr; }

  [[nodiscard]] std::string text(const char* name) const {
    const char* value = get_(name);
    return value == nullptr ? std::string() : std::string(value);
  }

  /// @throws Error(arguments) when the variable is missing, is no whole number, or lies outside [lowest, highest].
  [[nodiscard]] int number(const char* name, const char* beside, int lowest, int highest) const {
    const char* value = get_(name);
    if (value == nullptr) {
      throw Error(ExitCode::arguments, std::string("the environment sets ") + beside + " but not " + name +
                                           "; set both, or start the program with --ranks N, torchrun or mpirun.");
    }
    const std::string_view text = value;
    int number = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failure != std::errc() || end != text.data() + text.size() || number < lowest || number > highest) {
      throw Error(ExitCode::arguments, std::string("the environment variable ") + name + " is \"" + value +
                                           "\", expected a whole number from " + std::to_string(lowest) + " to " +
                                           std::to_string(highest) + ".");
    }
    return number;
  }

  [[nodiscard]] int number_or(const char* name, int lowest, int highest, int otherwise) const {
    return has(name) ? number(name, name, lowest, highest) : otherwise;
  }

 private:
  const F& get_;
};

inline constexpr int most_ranks = 1 << 20;

/// The variables in which one family of launchers tells a rank its place.
struct RankVariables {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

/// torchrun, and our own launcher.
inline constexpr RankVariables torch_variables{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
inline constexpr RankVariables open_mpi_variables{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                                  "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
/// MPICH's Hydra, and other launchers that speak PMI.
inline constexpr RankVariables pmi_variables{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

[[nodiscard]] inline bool is_loopback(std::string_view address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

template <GetEnv F>
Rendezvous rendezvous_from_environment(const EnvironmentReader<F>& environment, const char* beside, bool one_machine) {
  Rendezvous how;
  if (environment.has("DOVETAIL_STORE")) {
    how.kind = Rendezvous::Kind::file;
    how.file = environment.text("DOVETAIL_STORE");
    if (how.file.empty())
      throw Error(ExitCode::arguments, "the environment variable DOVETAIL_STORE is empty, expected a path.");
    return how;
  }
  how.kind = Rendezvous::Kind::tcp;
  how.address = environment.text("MASTER_ADDR");
  if (how.address.empty()) {
    if (!one_machine) {
      throw Error(ExitCode::arguments, std::string("the environment sets ") + beside +
                                           " but not MASTER_ADDR; set it to the machine of rank 0.");
    }
    how.address = "127.0.0.1";
  }
  how.port = environment.number("MASTER_PORT", beside, 1, 65535);
  how.agent_store = environment.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  how.restart_count = environment.number_or("TORCHELASTIC_RESTART_COUNT", 0, most_ranks, 0);
  return how;
}

template <GetEnv F>
Ranks read_ranks(const F& get, const RankVariables& names) {
  const EnvironmentReader<F> environment(get);
  Ranks ranks;
  ranks.world_size = environment.number(names.world_size, names.rank, 1, most_ranks);
  ranks.rank = environment.number(names.rank, names.world_size, 0, most_ranks);
  const auto below = [](const char* name, int value, const char* limit_name, int limit) {
    if (value < limit) return;
    throw Error(ExitCode::arguments, std::string("the environment variable ") + name + " is " + std::to_string(value) +
                                         ", expected less than " + limit_name + ", which is " + std::to_string(limit) +
                                         ".");
  };
  below(names.rank, ranks.rank, names.world_size, ranks.world_size);
  if (environment.has(names.local_rank) || environment.has(names.local_world_size)) {
    ranks.local_world_size = environment.number(names.local_world_size, names.local_rank, 1, ranks.world_size);
    ranks.local_rank = environment.number(names.local_rank, names.local_world_size, 0, most_ranks);
    below(names.local_rank, ranks.local_rank, names.local_world_size, ranks.local_world_size);
  } else if (ranks.world_size == 1 || environment.has("DOVETAIL_STORE") ||
             is_loopback(environment.text("MASTER_ADDR"))) {
    ranks.local_rank = ranks.rank;  // every rank can only be on this machine
    ranks.local_world_size = ranks.world_size;
  } else {
    throw Error(ExitCode::arguments, std::string("the environment sets ") + names.rank + " but not " +
                                         names.local_rank + " and " + names.local_world_size +
                                         "; set both, they choose the device.");
  }
  if (ranks.world_size > 1) {
    ranks.how = rendezvous_from_environment(environment, names.rank, ranks.local_world_size == ranks.world_size);
  }
  return ranks;
}

}  // namespace detail

/// The ranks that a launcher describes in the environment, or nothing when no launcher did. Read are, in this order:
/// RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE (torchrun, `--ranks N`), OMPI_COMM_WORLD_* (Open MPI), PMI_* and
/// MPI_LOCAL* (MPICH); and to meet DOVETAIL_STORE (a file), else MASTER_ADDR and MASTER_PORT with
/// TORCHELASTIC_USE_AGENT_STORE and TORCHELASTIC_RESTART_COUNT. Open MPI and MPICH set no MASTER_PORT: pass one on
/// (`mpirun -x MASTER_PORT=29500`, `-env MASTER_PORT 29500`).
/// @param get  like std::getenv: name to value, or nullptr
/// @throws Error(arguments) when variables are missing, are no numbers or contradict each other.
template <detail::GetEnv F>
std::optional<Ranks> launched_ranks(const F& get) {
  for (const auto& names : {detail::torch_variables, detail::open_mpi_variables, detail::pmi_variables}) {
    if (get(names.rank) != nullptr || get(names.world_size) != nullptr) return detail::read_ranks(get, names);
  }
  return std::nullopt;
}

/// As launched_ranks; a process that no launcher started is a run of one rank.
template <detail::GetEnv F>
Ranks ranks_from_environment(const F& get) {
  return launched_ranks(get).value_or(Ranks{});
}

inline Ranks ranks_from_environment() {
  return ranks_from_environment([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
}

}  // namespace dovetail
