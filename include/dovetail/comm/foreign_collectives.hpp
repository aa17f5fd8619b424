// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/communicator.hpp>

namespace dovetail {

/// Runs `body`, in which LibTorch talks to other ranks by itself: c10d::Reducer does in a backward. What its transport
/// throws becomes an Error as a Communicator's own collectives give it; all else, the user's exceptions among it, goes
/// on as it is.
/// @throws Error(peer_lost) or Error(collective_timeout)
template <class Body>
void name_foreign_collectives(const Communicator& comm, std::string_view what, Body&& body) {
  try {
    body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& cause) {
    if (comm.size() > 1 && detail::is_from_transport(detail::first_line(cause.what())))
      detail::throw_collective_error(cause, what, comm.rank(), comm.size(), comm.timeouts().step);
    throw;
  }
}

}  // namespace dovetail
