#include "muonrt/mpi.h"

#include <mpi.h>

#include "base/error.hpp"
#include "comm/mpi/mpi_transport.hpp"

using muonrt::Error;
using muonrt::Status;

extern "C" muonrt_status_t muonrt_comm_create_mpi_address(muonrt_comm_t** comm,
                                                          const void* mpi_comm_address,
                                                          int64_t timeout_ms) {
  try {
    if (comm) *comm = nullptr;
    MUONRT_REQUIRE(comm && mpi_comm_address, Status::kInvalidArgument,
                   "muonrt_comm_create_mpi_address: ", comm ? "mpi_comm_address" : "comm",
                   " is NULL; pass a valid pointer");
    const muonrt_transport_t table =
        muonrt::mpi::make_transport(*static_cast<const MPI_Comm*>(mpi_comm_address), timeout_ms);
    const muonrt_status_t status = muonrt_comm_create_callbacks(comm, &table);
    if (status != MUONRT_OK) table.destroy(table.state);
    return status;
  } catch (...) {
    const Error error = muonrt::current_error();
    return muonrt_set_last_error(static_cast<muonrt_status_t>(error.status()), error.what());
  }
}
