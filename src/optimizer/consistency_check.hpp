#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/comm.hpp"
#include "optimizer/agreement.hpp"
#include "optimizer/finite_check.hpp"
#include "optimizer/settings/settings.hpp"
#include "pipeline/pipeline.hpp"
#include "pipeline/replica_hashes.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// Bytes that each rank allocates for its ConsistencyCheck.
std::vector<int64_t> consistency_check_bytes(const Plan& plan, const OptimizerSettings& settings);

/// Checks before the first committed step that weights and state are finite, and that replicas are
/// bitwise identical. Later steps do not check again. A check stays due until a step that ran it is
/// committed. Ops::check_masters compares weights with their master weights in every step; for
/// weights that no step has written yet this class allows the caller's rounding.
class ConsistencyCheck {
 public:
  ConsistencyCheck() = default;
  /// Allocates the memory. All checks are due.
  ConsistencyCheck(Device& device, const OptimizerSettings& settings, const State& state,
                   const Plan& plan, int rank, int world);

  /// Makes all checks due, for example after state was loaded.
  void schedule_all();
  /// Makes the checks of a parameter's weights due. Call it on all ranks.
  void schedule_weights(int64_t param);
  /// Makes those checks of a parameter due that concern only this rank.
  void schedule_local(int64_t param);

  /// Runs the checks that are due. Adds this rank's hashes of replicas to `inputs`, and what they
  /// cover to its fingerprint, so that the vote compares both. Blocks if any check is due.
  /// @param params  the views after ParamTables::fill_for_step; `rounded_by_caller` is set.
  /// Errors: as FiniteCheck; those of the pipeline.
  void run_before_step(Pipeline& pipeline, const OptimizerSettings& settings, ParamView* params,
                       StepInputs& inputs);
  /// Clears the checks that the committed step has run. With ReplicaCheck::kEvery the comparison of
  /// replicas stays due.
  /// @param wrote_nonfinite  the commit wrote a value that is not finite on this rank. All local
  ///     checks are then due again.
  void on_commit(bool wrote_nonfinite);
  /// Call it after the step was rejected. If the vote sum shows that replicas differ, returns the
  /// same MISMATCH error on every rank. It names the parameter and the ranks if there is memory for
  /// the text. Collective.
  std::optional<Error> find_replica_mismatch(Comm& comm, const OptimizerSettings& settings,
                                             const Vote& vote_sum);

  const FiniteCheck& finite_check() const { return finite_; }
  /// Releases memory. Call it when FirstUpdate does not need finite_check() any more.
  void forget_findings() { finite_.forget(); }

  /// Names what the step compares between the replicas of a parameter, for the agreement table.
  const char* described(int64_t param) const;

 private:
  // kLocal: without other ranks. kRounding: not a check, but allows the caller's rounding until a
  // step has written the weights.
  enum : uint8_t { kLocal = 1, kWeights = 2, kGradient = 4, kRounding = 8 };
  /// Returns the first parameter whose replicas differ. Collective.
  int64_t find_param(Comm& comm, bool gradients);

  ReplicaCheck when_ = ReplicaCheck::kFirst;
  FiniteCheck finite_;
  ReplicaHashes hashes_;
  std::vector<uint8_t> due_, now_;  // by parameter: checks that are due, checks of this step
  std::vector<int64_t> by_rank_;    // memory for one number of each rank
};

}  // namespace muonrt
