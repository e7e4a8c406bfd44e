#pragma once

#include <mpi.h>

#include <functional>
#include <memory>
#include <string>

#include "comm/transport.hpp"

// Functions for tests under mpirun. All ranks run every test case, in the same order.
namespace mpi_test {

/// Returns the MPI communicator for tests. The harness itself uses a different duplicate of
/// MPI_COMM_WORLD.
MPI_Comm world();
int rank();
int size();
/// Returns the thread level that MPI provides.
int thread_level();

/// Returns the problems of all ranks as one text, which is the same on each rank, or "" if there
/// are none. Collective. Compare the text with "" in a REQUIRE, so that the test case fails on all
/// ranks or on none.
std::string on_all(const std::string& problem);

/// Returns the status and the message of the error that `body` throws, or "" if it throws none.
std::string attempt(const std::function<void()>& body);

/// Waits until all ranks have called this function. Collective.
void barrier();

/// Creates a transport for the ranks of world() with this timeout. Collective.
std::unique_ptr<muonrt::Transport> connect(int64_t timeout_ms = 30'000,
                                           int64_t fragment_bytes = int64_t{256} << 20);

/// Returns the error of an attempt to create a transport before MPI_Init.
const std::string& before_init();

}  // namespace mpi_test
