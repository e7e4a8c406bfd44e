#include "base/error.hpp"

#include <catch2/catch.hpp>

using namespace muonrt;

TEST_CASE("error: what a peer tells keeps its status, its rank and its words", "[unit][base]") {
  const Error own(Status::kDevice, "the GPU is gone");
  CHECK(own.rank() == -1);
  CHECK_FALSE(own.is_remote());
  const Error told = own.reported_by_rank(2);
  CHECK(told.status() == Status::kDevice);
  CHECK(told.message() == "rank 2 reported: the GPU is gone");
  CHECK(told.rank() == 2);
  CHECK(told.is_remote());
  const Error again = told.reported_by_rank(5);
  CHECK(again.message() == "rank 5 reported: rank 2 reported: the GPU is gone");
  CHECK(again.rank() == 2);
}

TEST_CASE("error: all ranks name what they have agreed on alike", "[unit][base]") {
  const Error own(Status::kDevice, "the GPU is gone");
  const Error told = own.reported_by_rank(2).with_context("allgather #1: ", "; last operations");
  CHECK(told.message() == "allgather #1: rank 2 reported: the GPU is gone; last operations");
  CHECK(told.rank() == 2);
  CHECK(own.with_rank(2).message() == "rank 2: the GPU is gone");
  CHECK(own.with_rank(2).rank() == 2);
  CHECK_FALSE(own.with_rank(2).is_remote());
  CHECK(own.reported_by_rank(2).with_rank(0).message() == "rank 2: the GPU is gone");
  CHECK(own.reported_by_rank(2).with_rank(0).is_remote());
  CHECK(told.with_rank(0).message() == "rank 2: the GPU is gone; last operations");
  CHECK(own.with_rank(2).with_rank(2).message() == "rank 2: the GPU is gone");
  const Error numberless(Status::kComm, "mpi: rank 1 reported: enough", -1, true);
  CHECK(numberless.with_rank(0).message() == numberless.message());
}
