#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "plan/plan.hpp"
#include "plan/report/traffic.hpp"

namespace muonrt {

/// What `describe` and `json` print of a parameter.
struct ParamReport {
  int32_t first_matrix = 0, matrices = 0;  // ids; 0 matrices for AdamW
  int64_t bytes = 0;                       // of its matrices, transport dtype
  double flops = 0;
  std::vector<int32_t> owners, chunks;  // of its matrices
  bool sliced = false;  // AdamW with state in slices of all ranks: `slots` says where these travel
};

struct ChunkReport {
  int32_t owners = 0;
  double cost = 0, largest_cost = 0;  // in all; of its busiest owner
};

/// Largest and mean of a quantity over the ranks.
struct Spread {
  int64_t largest = 0;
  double mean = 0;
};

/// The facts of a plan, for both printers.
struct PlanReport {
  std::vector<ParamReport> params;
  std::vector<ChunkReport> chunks;
  PlanTraffic traffic;
  double flops = 0, flops_full = 0;  // with symmetric products at half cost; all in full
  int64_t return_peers = 0, relayed_chunks = 0;
  double balance = 1;  // makespan / lower bound
  Spread sent, received, message_bytes, staged_bytes, state_bytes;
  std::vector<int64_t> scratch, checks;  // of each rank; empty: not known
  Spread scratch_bytes, check_bytes;
  std::vector<std::string> warnings;
};

/// The plan's digest as 0x and 16 digits.
std::string hash_text(const Plan& plan);

PlanReport report_on(const Plan& plan, std::span<const int64_t> scratch = {},
                     std::span<const int64_t> checks = {});

/// What travels in a slot: "directions", "addends" (of matrices) or "slices".
const char* content_name(const ChunkSpec& chunk);

/// Where a parameter lies, and its gradient where that lies elsewhere.
std::string layout_text(const ParamSpec& spec);

/// "direct", or the replicas of a block.
std::string return_text(const ChunkSpec& chunk);

/// Where a parameter's state lies: "local", with the "owners" of its matrices, or in "slices".
const char* state_name(const ParamSpec& spec);

/// "standard", "gram", "adamw"; "none" for a Muon parameter with no elements.
const char* form_name(const Plan& plan, size_t param, const ParamReport& report);

}  // namespace muonrt
