#pragma once

#include <cstdint>
#include <string>

// What main.cpp does between MPI_Init and MPI_Finalize; all but `open` collective.
namespace mpi_test {

void open(int* argc, char*** argv, int wanted_level);
/// Calls MPI_Finalize; what making a transport says after it.
std::string close();

/// The texts of all ranks, in order: on every rank, or on rank 0 alone.
std::string gather_texts(const std::string& mine, bool to_all);
bool same_on_all(uint64_t value);
int largest_of_all(int value);
unsigned of_rank_0(unsigned value);

}  // namespace mpi_test
