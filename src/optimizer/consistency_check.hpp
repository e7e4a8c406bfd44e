#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/comm.hpp"
#include "optimizer/agreement.hpp"
#include "optimizer/finite_check.hpp"
#include "optimizer/master_check.hpp"
#include "optimizer/settings/settings.hpp"
#include "pipeline/pipeline.hpp"
#include "pipeline/replica_hashes.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// Bytes that each rank takes for it. @param settings  of the plan; without parameters: of none
///     whose master weights are the caller's.
std::vector<int64_t> consistency_check_bytes(const Plan& plan, const OptimizerSettings& settings,
                                             bool host_reaches_memory);

/// What the first committed step checks, and later ones trust: weights and state are finite,
/// masters agree with parameters, replicas with one another. A check stays due until a step that
/// made it is committed.
class ConsistencyCheck {
 public:
  ConsistencyCheck() = default;
  /// Takes the memory; everything is due.
  ConsistencyCheck(Device& device, const OptimizerSettings& settings, const State& state,
                   const Plan& plan, const ParamView* params, int rank, int world);

  /// State was resumed: everything is due again.
  void schedule_all();
  /// A parameter's weights were written, on every rank.
  void schedule_weights(int64_t param);
  /// A parameter lies elsewhere now, here.
  void schedule_local(int64_t param);

  /// Looks for what is not finite, compares masters, and gives `run` this rank's words of what
  /// replicas hold, which its stamp then covers. Blocks where anything is due.
  /// @param params  as Tables::fill has left them.
  /// Errors: as FiniteCheck and MasterCheck; those of the pipeline.
  void run_before_step(Pipeline& pipeline, const OptimizerSettings& settings,
                       const ParamView* params, StepInputs& run);
  /// That step was committed. @param wrote_nonfinite  on this rank: then all parameters are looked
  ///     at again.
  void on_commit(bool wrote_nonfinite);
  /// It was voted down. Where the sums say that replicas differ: MISMATCH, the same on every rank,
  /// naming the parameter and the ranks, where there is memory for that. Collective.
  std::optional<Error> find_replica_mismatch(Comm& comm, const OptimizerSettings& settings,
                                             const Vote& sum);

  /// What of a parameter the step compares with its replicas, for the table of arguments.
  const char* described(int64_t param) const;

 private:
  enum : uint8_t { kLocal = 1, kWeights = 2, kGradient = 4 };  // kHere: by this rank alone
  int64_t find_param(Comm& comm, bool gradients);

  ReplicaCheck when_ = ReplicaCheck::kFirst;
  FiniteCheck finite_;
  MasterCheck masters_;
  ReplicaHashes hashes_;
  std::vector<uint8_t> due_, now_;  // by parameter: what is to be checked, and what a step checks
  std::vector<int64_t> by_rank_;    // room for a word of every rank
};

}  // namespace muonrt
