#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "plan/plan.hpp"
#include "plan/report/traffic.hpp"

namespace muonrt {

/// The facts of one parameter that `describe` and `json` print.
struct ParamReport {
  int32_t first_matrix = 0, matrices = 0;  // id of the first and number; 0 for AdamW
  int64_t bytes = 0;                       // all matrices, transport dtype
  double flops = 0;
  std::vector<int32_t> owners, chunks;  // one for each matrix
  bool sliced = false;  // AdamW with state in slices; `chunks` are then those of the slices
};

struct ChunkReport {
  int32_t owners = 0;
  double cost = 0, largest_cost = 0;  // all owners together; the busiest owner
};

/// Maximum and mean of a quantity over the ranks.
struct Spread {
  int64_t largest = 0;
  double mean = 0;
};

/// The facts of a plan that both printers use.
struct PlanReport {
  std::vector<ParamReport> params;
  std::vector<ChunkReport> chunks;
  PlanTraffic traffic;
  double flops = 0, flops_full = 0;  // symmetric products at half cost; in full
  int64_t return_peers = 0, relayed_chunks = 0;
  double balance = 1;        // makespan / lower bound
  double round_robin = 1;    // the same if owners were assigned in turn, the costliest first
  int64_t hidden_bytes = 0;  // of moved_total: sent by exchanges that can overlap with products
  Spread sent, received, message_bytes, staged_bytes, state_bytes;
  Spread param_bytes, grad_bytes, master_bytes, moment_bytes;
  std::vector<int64_t> scratch, checks;  // bytes of each rank; empty: unknown
  Spread scratch_bytes, check_bytes;
  Spread total_bytes;       // all kinds of memory together
  size_t largest_rank = 0;  // the first one with the most memory
  std::vector<std::string> warnings;
};

/// Returns the hash of the plan as 0x and 16 digits.
std::string hash_text(const Plan& plan);

/// Returns all bytes of a rank: its traffic's memory, with scratch and checks if these are known.
int64_t total_bytes(const PlanReport& report, size_t rank);

PlanReport report_on(const Plan& plan, std::span<const int64_t> scratch = {},
                     std::span<const int64_t> checks = {});

/// Returns the content of a chunk: "directions", "partial_grads" (of matrices) or "slices".
const char* content_name(const ChunkSpec& chunk);

/// Returns the layout of a parameter, and of its gradient if that is separate.
std::string layout_text(const ParamSpec& spec);

/// Returns "direct", or the number of replicas in a block.
std::string return_text(const ChunkSpec& chunk);

/// Returns the location of a parameter's state: "local", "owners" of its matrices, or "slices".
const char* state_name(const ParamSpec& spec);

/// Returns "standard", "gram", "adamw", or "none" for a Muon parameter without elements.
const char* form_name(const Plan& plan, size_t param, const ParamReport& report);

}  // namespace muonrt
