#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "plan/plan.hpp"
#include "plan/report/traffic.hpp"

namespace muonrt {

/// The facts about one parameter that describe() and json() print.
struct ParamReport {
  /// Id of the first matrix, and number of matrices; both are 0 for AdamW.
  int32_t first_matrix = 0, matrices = 0;
  int64_t bytes = 0;  // size of all its matrices in the transport dtype
  double flops = 0;
  std::vector<int32_t> owners, chunks;  // for each matrix, its owner and its chunk
  /// True for AdamW with state in slices; `chunks` then contains the chunks of the slices.
  bool sliced = false;
};

struct ChunkReport {
  int32_t owners = 0;
  double cost = 0, largest_cost = 0;  // sum over all owners; cost on the busiest owner
};

/// The maximum and the mean of a quantity over the ranks.
struct Spread {
  int64_t largest = 0;
  double mean = 0;
};

/// The facts about a plan that describe() and json() print.
struct PlanReport {
  std::vector<ParamReport> params;
  std::vector<ChunkReport> chunks;
  PlanTraffic traffic;
  double flops = 0, flops_full = 0;  // symmetric products counted half, and in full
  int64_t return_peers = 0, relayed_chunks = 0;
  double balance = 1;  // makespan / lower bound
  /// Makespan / lower bound if the ranks became owners in turn, with the costliest matrix first.
  double round_robin = 1;
  /// The part of traffic.moved_total in exchanges that can overlap with products.
  int64_t hidden_bytes = 0;
  Spread sent, received, message_bytes, staged_bytes, state_bytes;
  Spread param_bytes, grad_bytes, master_bytes, moment_bytes;
  std::vector<int64_t> scratch, checks;  // bytes of each rank; empty if unknown
  Spread scratch_bytes, check_bytes;
  Spread total_bytes;       // the sum of all kinds of memory
  size_t largest_rank = 0;  // the first rank that needs the most memory
  std::vector<std::string> warnings;
};

/// Returns the hash of the plan as "0x" and 16 digits.
std::string hash_text(const Plan& plan);

/// Returns the total bytes of a rank: the memory in its traffic report and, if known, scratch and
/// checks.
int64_t total_bytes(const PlanReport& report, size_t rank);

PlanReport report_on(const Plan& plan, std::span<const int64_t> scratch = {},
                     std::span<const int64_t> checks = {});

/// Returns the content of the chunk as a name: "directions", "partial_grads" (of matrices) or
/// "slices".
const char* content_name(const ChunkSpec& chunk);

/// Returns the layout of a parameter as text. If the gradient has a separate layout, the text
/// includes it.
std::string layout_text(const ParamSpec& spec);

/// Returns the kind of the chunk's return: "direct", or the number of replicas in a block.
std::string return_text(const ChunkSpec& chunk);

/// Returns where the state of a parameter is stored: "local", "owners" (of its matrices), or
/// "slices".
const char* state_name(const ParamSpec& spec);

/// Returns "standard", "gram", "adamw", or "none" for a Muon parameter without elements.
const char* form_name(const Plan& plan, size_t param, const ParamReport& report);

}  // namespace muonrt
