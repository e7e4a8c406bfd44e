#include "base/error.hpp"

#include <catch2/catch.hpp>

using namespace muonrt;

TEST_CASE("error: an error from a peer keeps its status, rank and message", "[unit][base]") {
  const Error own(Status::kDevice, "the GPU has failed");
  CHECK(own.rank() == -1);
  CHECK_FALSE(own.is_remote());
  const Error remote = own.reported_by_rank(2);
  CHECK(remote.status() == Status::kDevice);
  CHECK(remote.message() == "rank 2 reported: the GPU has failed");
  CHECK(remote.rank() == 2);
  CHECK(remote.is_remote());
  const Error again = remote.reported_by_rank(5);
  CHECK(again.message() == "rank 5 reported: rank 2 reported: the GPU has failed");
  CHECK(again.rank() == 2);
}

TEST_CASE("error: all ranks return an agreed error with the same message", "[unit][base]") {
  const Error own(Status::kDevice, "the GPU has failed");
  const Error remote = own.reported_by_rank(2).with_context("allgather #1: ", "; last operations");
  CHECK(remote.message() == "allgather #1: rank 2 reported: the GPU has failed; last operations");
  CHECK(remote.rank() == 2);
  CHECK(own.with_rank(2).message() == "rank 2: the GPU has failed");
  CHECK(own.with_rank(2).rank() == 2);
  CHECK_FALSE(own.with_rank(2).is_remote());
  CHECK(own.reported_by_rank(2).with_rank(0).message() == "rank 2: the GPU has failed");
  CHECK(own.reported_by_rank(2).with_rank(0).is_remote());
  CHECK(remote.with_rank(0).message() == "rank 2: the GPU has failed; last operations");
  CHECK(own.with_rank(2).with_rank(2).message() == "rank 2: the GPU has failed");
  const Error numberless(Status::kComm, "mpi: rank 1 reported: enough", -1, true);
  CHECK(numberless.with_rank(0).message() == numberless.message());
}
