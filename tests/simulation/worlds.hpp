#pragma once

#include <cstdint>
#include <string>

namespace simulation {

struct Result {
  std::string problem;  // "" if there is none
  uint64_t log_hash = 0;
  int64_t steps = 0;  // number of switches between threads
};

/// Runs the world of a seed with the thread transport or TCP. Seed and transport determine the
/// whole run.
/// @param prints  whether to print the plan and the log of events.
Result run_world(uint64_t seed, bool tcp, bool prints);

}  // namespace simulation
