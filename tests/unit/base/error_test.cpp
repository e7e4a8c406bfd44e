#include "base/error.hpp"

#include <catch2/catch.hpp>

using namespace muonrt;

TEST_CASE("error: what a peer tells keeps its status, its rank and its words", "[unit][base]") {
  const Error own(Status::kDevice, "the GPU is gone");
  CHECK(own.rank() == -1);
  CHECK_FALSE(own.is_secondhand());
  const Error told = own.told_by(2);
  CHECK(told.status() == Status::kDevice);
  CHECK(told.message() == "rank 2 reported: the GPU is gone");
  CHECK(told.rank() == 2);
  CHECK(told.is_secondhand());
  const Error again = told.told_by(5);
  CHECK(again.message() == "rank 5 reported: rank 2 reported: the GPU is gone");
  CHECK(again.rank() == 2);
}

TEST_CASE("error: all ranks name what they have agreed on alike", "[unit][base]") {
  const Error own(Status::kDevice, "the GPU is gone");
  const Error told = own.told_by(2).between("allgather #1: ", "; last operations");
  CHECK(told.message() == "allgather #1: rank 2 reported: the GPU is gone; last operations");
  CHECK(told.rank() == 2);
  CHECK(own.named(2).message() == "rank 2: the GPU is gone");
  CHECK(own.named(2).rank() == 2);
  CHECK_FALSE(own.named(2).is_secondhand());
  CHECK(own.told_by(2).named(0).message() == "rank 2: the GPU is gone");
  CHECK(own.told_by(2).named(0).is_secondhand());
  CHECK(told.named(0).message() == "rank 2: the GPU is gone; last operations");
  CHECK(own.named(2).named(2).message() == "rank 2: the GPU is gone");
  const Error numberless(Status::kComm, "mpi: rank 1 reported: enough", -1, true);
  CHECK(numberless.named(0).message() == numberless.message());
}
