#include "mpi/harness.hpp"

#include <catch2/catch.hpp>

using namespace mpi_test;

TEST_CASE("mpi harness: one rank's problem is known to all", "[mpi]") {
  const int last = size() - 1;
  REQUIRE(on_all("") == "");
  const std::string expected = "rank " + std::to_string(last) + ": odd\n";
  REQUIRE(on_all(rank() == last ? "odd" : "") == expected);
}

// Run by CTest to see that it fails, and how.
TEST_CASE("mpi harness: planted failure of rank 1 alone", "[.planted]") {
  INFO("what only rank 1 knows");
  REQUIRE(rank() != 1);
}
