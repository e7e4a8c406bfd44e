/**
 * @file muonrt/mpi_comm.h
 * Creates a communicator from an MPI_Comm.
 *
 * The header includes <mpi.h>, so the compiler can check the type of the handle. Link your program
 * with the library muonrt_mpi.
 */
#ifndef MUONRT_MPI_COMM_H
#define MUONRT_MPI_COMM_H

#include <mpi.h>

#include "muonrt/mpi.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Creates a communicator over the ranks of an MPI communicator.
 *
 * @code
 * muonrt_comm_t* comm;
 * check(muonrt_comm_create_mpi(&comm, MPI_COMM_WORLD, 60000));
 * @endcode
 *
 * The function calls muonrt_comm_create_mpi_address(), whose comment describes threads, lifetime
 * and errors.
 *
 * Threads: any that may call MPI. Collective: over the ranks of `mpi_comm`. Blocking.
 *
 * @param[out] comm        The new communicator; NULL on error. Destroy it with
 *                         muonrt_comm_destroy() before MPI_Finalize.
 * @param[in]  mpi_comm    An intracommunicator. muonrt duplicates it and uses the duplicate.
 * @param[in]  timeout_ms  Timeout of this call in ms, 1 to 31622400000 (366 days).
 *
 * @return The statuses of muonrt_comm_create_mpi_address().
 */
static inline muonrt_status_t muonrt_comm_create_mpi(muonrt_comm_t** comm, MPI_Comm mpi_comm,
                                                     int64_t timeout_ms) {
  return muonrt_comm_create_mpi_address(comm, &mpi_comm, timeout_ms);
}

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_MPI_COMM_H */
