/* A minimal program with one rank. */
#include <muonrt/muonrt.h>
#ifdef USE_MPI
#include <muonrt/mpi_comm.h>
#endif
#include <stdio.h>

int main(void) {
  const int32_t expected =
      MUONRT_VERSION_MAJOR * 10000 + MUONRT_VERSION_MINOR * 100 + MUONRT_VERSION_PATCH;
  if (muonrt_get_version() != expected) {
    fprintf(stderr, "the library has version %d, but the header has %d\n",
            (int)muonrt_get_version(), (int)expected);
    return 1;
  }

  muonrt_comm_t* comm = NULL;
  int32_t size = 0;
  if (muonrt_comm_create_self(&comm) != MUONRT_OK ||
      muonrt_comm_get_size(&size, comm) != MUONRT_OK) {
    fprintf(stderr, "%s\n", muonrt_get_last_error());
    return 1;
  }
  muonrt_comm_destroy(comm);
#ifdef USE_MPI
  int initialized = 1;
  if (MPI_Initialized(&initialized) != MPI_SUCCESS || initialized ||
      muonrt_comm_create_mpi(&comm, MPI_COMM_WORLD, 1000) != MUONRT_ERROR_INVALID_STATE) {
    fprintf(stderr, "without MPI_Init: %s\n", muonrt_get_last_error());
    return 1;
  }
#endif
  printf("muonrt %d, world of %d\n", (int)expected, (int)size);
  return size == 1 ? 0 : 1;
}
