#include <catch2/catch.hpp>
#include <vector>

#include "mpi/harness.hpp"
#include "muonrt/mpi.h"

using namespace mpi_test;
using Catch::Contains;

TEST_CASE("mpi abi: a communicator over MPI talks through the C functions", "[mpi][comm]") {
  MPI_Comm parent = world();
  muonrt_comm_t* comm = nullptr;
  REQUIRE(muonrt_comm_create_mpi(&comm, &parent, 30'000) == MUONRT_OK);
  int32_t my_rank = -1, ranks = -1;
  REQUIRE(muonrt_comm_rank(&my_rank, comm) == MUONRT_OK);
  REQUIRE(muonrt_comm_size(&ranks, comm) == MUONRT_OK);
  REQUIRE(my_rank == rank());
  REQUIRE(ranks == size());
  REQUIRE(muonrt_comm_set_timeout(comm, 30'000) == MUONRT_OK);
  REQUIRE(muonrt_comm_barrier(comm) == MUONRT_OK);
  std::vector<int32_t> all(static_cast<size_t>(size()), -1);
  REQUIRE(muonrt_comm_allgather(comm, &my_rank, all.data(), 4) == MUONRT_OK);
  for (int r = 0; r < size(); ++r) REQUIRE(all[static_cast<size_t>(r)] == r);
  int32_t got = -1;
  const muonrt_message_t send{(rank() + 1) % size(), 0, &my_rank, 4};
  const muonrt_message_t receive{(rank() + size() - 1) % size(), 0, &got, 4};
  REQUIRE(muonrt_comm_exchange(comm, &send, 1, &receive, 1) == MUONRT_OK);
  REQUIRE(got == receive.peer);
  muonrt_comm_destroy(comm);
}

TEST_CASE("mpi abi: what cannot be made is null, with a message", "[mpi][comm]") {
  MPI_Comm parent = world(), null = MPI_COMM_NULL;
  REQUIRE(muonrt_comm_create_mpi(nullptr, &parent, 1000) == MUONRT_ERROR_INVALID_ARGUMENT);
  REQUIRE_THAT(muonrt_last_error(), Contains("comm is null"));
  muonrt_comm_t* comm = reinterpret_cast<muonrt_comm_t*>(&parent);
  REQUIRE(muonrt_comm_create_mpi(&comm, &null, 1000) == MUONRT_ERROR_INVALID_ARGUMENT);
  REQUIRE_THAT(muonrt_last_error(), Contains("MPI_COMM_NULL"));
  REQUIRE(comm == nullptr);
  REQUIRE(muonrt_comm_create_mpi(&comm, nullptr, 1000) == MUONRT_ERROR_INVALID_ARGUMENT);
  REQUIRE_THAT(muonrt_last_error(), Contains("mpi_comm is null"));
  REQUIRE(muonrt_comm_create_mpi(&comm, &parent, -1) == MUONRT_ERROR_INVALID_ARGUMENT);
}
