#pragma once

#include <mpi.h>

#include <functional>
#include <memory>
#include <string>

#include "comm/transport.hpp"

// Functions for tests under mpirun. Every test case runs on all ranks, in the same order.
namespace mpi_test {

/// The MPI communicator for tests. The harness uses another duplicate.
MPI_Comm world();
int rank();
int size();
/// The thread level that MPI provides.
int thread_level();

/// Returns the problems of all ranks, the same text on each; "" if there are none. Collective.
/// Compare it with "" in a REQUIRE, so that the test case fails on all ranks or on none.
std::string on_all(const std::string& problem);

/// Returns "", or the status and the message of the error that `body` throws.
std::string attempt(const std::function<void()>& body);

/// Waits until all ranks have called it. Collective.
void barrier();

/// Creates a transport over world() with this timeout. Collective.
std::unique_ptr<muonrt::Transport> connect(int64_t timeout_ms = 30'000,
                                           int64_t fragment_bytes = int64_t{256} << 20);

/// The error of creating a transport before MPI_Init.
const std::string& before_init();

}  // namespace mpi_test
