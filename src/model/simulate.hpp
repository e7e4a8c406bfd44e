#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "optimizer/planning.hpp"
#include "pipeline/span.hpp"
#include "plan/machine/profile.hpp"

namespace muonrt {

/// The times of one rank in a step. The times of its compute stream add up to the time of the step:
/// products + local + exposed + launch = seconds.
struct RankTimes {
  int32_t rank = 0;
  double seconds = 0;   // when the rank has finished
  double products = 0;  // products on the compute stream
  double local = 0;     // passes over memory on the compute stream
  double exchange = 0;  // exchanges and reductions, including waits for other ranks
  double exposed = 0;   // waits of the compute stream for an exchange or a reduction
  double launch = 0;    // waits of the compute stream for the host
  int64_t sent_bytes = 0, received_bytes = 0, messages = 0;  // to and from other ranks
};

struct Simulation {
  double seconds = 0;            // when the last rank has finished
  RankTimes critical;            // times of the rank with the most products and local work
  std::vector<Span> spans;       // spans of `critical`
  std::vector<RankTimes> ranks;  // the simulated ranks, ascending
  std::string trace;             // chrome_trace() of all simulated ranks; empty if not requested
};

struct SimulationOptions {
  /// Maximum number of simulated ranks. If there are more ranks, simulate() chooses the ranks with
  /// the most work, bytes, messages or memory, and the busiest owners of each chunk. If a rank
  /// exchanges messages with a rank that is not simulated, it finishes the exchange together with
  /// the slowest simulated rank.
  int max_ranks = 64;
  bool trace = false;
};

/// Runs a full step of the pipeline on the modelled backend, without gradients, weights or
/// messages. Does not model a step that collects statistics.
/// Errors: NOT_SUPPORTED if the caller's functions exchange the messages, because their time is
/// unknown.
Simulation simulate(const Planning& planning, const MachineProfile& profile,
                    const SimulationOptions& options = {});

/// Returns the ranks that simulate() chooses, at most `max_ranks`.
std::set<int32_t> simulated_ranks(const Planning& planning, int max_ranks);

}  // namespace muonrt
