#pragma once

#include <string>
#include <vector>

#include "comm/transport.hpp"

// What every transport does in exchanges, reductions, aborts, timeouts and mismatches.
namespace transport_test {

/// What each rank of a world does on its own transport, all at the same time. A transport may have
/// ended after it, and must not be destroyed before all ranks have returned.
struct Script {
  const char* name;
  int fewest_ranks;
  /// What is wrong as this rank sees it; "" if nothing.
  std::string (*run)(muonrt::Transport& transport);
};

const std::vector<Script>& scripts();

/// Runs a script; an exception that it does not expect is a problem, too.
std::string problem_of(const Script& script, muonrt::Transport& transport);

}  // namespace transport_test
