#pragma once

#include <string>
#include <vector>

#include "comm/transport.hpp"

// Checks for all transports: exchanges, reductions, aborts, timeouts and mismatches.
namespace transport_test {

/// A script that all ranks run at the same time, each with its own transport. The script may leave
/// the transport unusable. Destroy the transport only after all ranks have returned.
struct Script {
  const char* name;
  int fewest_ranks;
  /// Runs the script. Returns the problems on this rank, or "" if there are none.
  std::string (*run)(muonrt::Transport& transport);
};

const std::vector<Script>& scripts();

/// Runs a script and returns the problems. An unexpected exception is one of these problems.
std::string problem_of(const Script& script, muonrt::Transport& transport);

}  // namespace transport_test
