#pragma once

#include <string>
#include <vector>

#include "comm/transport.hpp"

// Checks for all transports: exchanges, reductions, aborts, timeouts and mismatches.
namespace transport_test {

/// A script that all ranks of a world run at the same time, each on its own transport. Afterwards
/// the transport may be unusable. Do not destroy it before all ranks have returned.
struct Script {
  const char* name;
  int fewest_ranks;
  /// Runs the script and returns the problems on this rank, "" if there are none.
  std::string (*run)(muonrt::Transport& transport);
};

const std::vector<Script>& scripts();

/// Runs a script. An unexpected exception is a problem, too.
std::string problem_of(const Script& script, muonrt::Transport& transport);

}  // namespace transport_test
