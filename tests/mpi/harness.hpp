#pragma once

#include <mpi.h>

#include <functional>
#include <memory>
#include <string>

#include "comm/transport.hpp"

// What tests under mpirun share. Every test case runs on all ranks, in the same order.
namespace mpi_test {

/// For the communicators that tests make. The harness itself talks over another duplicate.
MPI_Comm world();
int rank();
int size();
/// MPI_THREAD_SINGLE ... MPI_THREAD_MULTIPLE, as provided.
int thread_level();

/// The problems of all ranks, the same text on each: "" if no rank has one. Collective: let it be
/// what a REQUIRE compares with "", so that the test case ends on all ranks or on none.
std::string on_all(const std::string& problem);

/// "" if `body` returns, else the status and the message of what it throws.
std::string attempt(const std::function<void()>& body);

/// Returns when all ranks are here. Collective.
void barrier();

/// A transport over world(), whose waits end after `timeout_ms`. Collective.
std::unique_ptr<muonrt::Transport> connect(int64_t timeout_ms = 30'000,
                                           int64_t piece_bytes = int64_t{256} << 20);

/// What making a transport said before MPI_Init.
const std::string& before_init();

}  // namespace mpi_test
