#pragma once

#include <mpi.h>

#include <cstdint>

#include "muonrt/transport.h"

namespace muonrt::mpi {

/// The maximum size of one MPI message in bytes.
constexpr int64_t kMaxFragmentBytes = int64_t{256} << 20;

/// Creates a table of transport functions over a duplicate of `comm`. Collective. The caller must
/// destroy the state in the table.
/// Errors: INVALID_STATE before MPI_Init or after MPI_Finalize; INVALID_ARGUMENT if `comm` is
/// MPI_COMM_NULL or an intercommunicator, or `timeout_ms` is out of range; COMM; TIMEOUT.
muonrt_transport_t make_transport(MPI_Comm comm, int64_t timeout_ms,
                                  int64_t fragment_bytes = kMaxFragmentBytes);

}  // namespace muonrt::mpi
