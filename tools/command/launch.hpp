#pragma once

#include <cmath>
#include <cstdint>
#include <functional>

#include "muonrt/muonrt.hpp"

namespace muonrt::tool {

/// Runs `work` on every rank and returns the largest exit code: under mpirun this process is one
/// rank of it; else `ranks` threads of this process are the ranks (0: one).
/// An exception of one rank is printed with its number and ends the others.
/// @param timeout  seconds; every wait for other ranks ends after so long. Under mpirun a rank that
///                 has not ended by then is named, and all are ended.
/// @param work     gets the rank's communicator; called once a rank.
/// Throws std::runtime_error where `ranks` contradicts mpirun.
int launch(int ranks, double timeout, const std::function<int(Comm&)>& work);

/// As the library's functions take it.
inline int64_t milliseconds(double seconds) { return std::llround(seconds * 1e3); }

/// Whether this process is a rank that a launcher such as mpirun started.
bool under_launcher();
/// This process' rank under a launcher, else 0.
int launcher_rank();

}  // namespace muonrt::tool
