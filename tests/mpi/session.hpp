#pragma once

#include <cstdint>
#include <string>

// Functions for main.cpp. All of them are collective.
namespace mpi_test {

void open(int* argc, char*** argv, int wanted_level);
/// Calls MPI_Finalize. Then tries to create a transport and returns the error.
std::string close();

/// Returns the texts of all ranks in rank order, on every rank or only on rank 0.
std::string gather_texts(const std::string& mine, bool to_all);
bool same_on_all(uint64_t value);
int largest_of_all(int value);
unsigned of_rank_0(unsigned value);

}  // namespace mpi_test
