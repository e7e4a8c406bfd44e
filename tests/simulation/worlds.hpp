#pragma once

#include <cstdint>
#include <string>

namespace simulation {

struct Result {
  std::string problem;  // "" if there is none
  uint64_t log_hash = 0;
  int64_t steps = 0;  // changes of the running thread
};

/// Runs the world of a seed over threads or TCP. Both the seed and the transport decide everything.
/// @param prints  prints the plan and the log of events.
Result run_world(uint64_t seed, bool tcp, bool prints);

}  // namespace simulation
