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

/// Returns the bytes that each rank allocates for its ConsistencyCheck.
std::vector<int64_t> consistency_check_bytes(const Plan& plan, const OptimizerSettings& settings);

/// Checks that weights and state are finite and that replicas are bitwise identical. A check is due
/// in every step until a step that has run it is committed; later steps do not repeat it.
///
/// This class also prepares Ops::check_masters(), which compares weights with their master weights
/// in every step. The caller may have rounded the initial weights in either direction, so the
/// comparison accepts both directions until a step has written the weight.
class ConsistencyCheck {
 public:
  ConsistencyCheck() = default;
  /// Allocates the memory. All checks are due.
  ConsistencyCheck(Device& device, const OptimizerSettings& settings, const State& state,
                   const Plan& plan, int rank, int world);

  /// Makes all checks due, for example after state has been loaded.
  void schedule_all();
  /// Makes the checks of a parameter's weights due. Must be called on all ranks.
  void schedule_weights(int64_t param);
  /// Like schedule_all(), but only for those checks of one parameter that do not involve other
  /// ranks.
  void schedule_local(int64_t param);

  /// Runs the checks that are due, and blocks if there are any. For the vote, adds this rank's
  /// hashes of replicas to `inputs`. Also mixes the set of hashed data into the fingerprint, so the
  /// vote detects ranks that hash different parameters.
  /// @param params  Views after ParamTables::fill_for_step(). run_before_step() sets their
  ///     `rounded_by_caller`.
  /// Errors: any error of FiniteCheck or of the pipeline.
  void run_before_step(Pipeline& pipeline, const OptimizerSettings& settings, ParamView* params,
                       StepInputs& inputs);
  /// Marks the checks that the committed step has run as no longer due. With ReplicaCheck::kEvery,
  /// the comparison of replicas remains due.
  /// @param wrote_nonfinite  True if the commit wrote a non-finite value on this rank. All checks
  ///     that do not involve other ranks are then due again.
  void on_commit(bool wrote_nonfinite);
  /// Call this function after a step was rejected. If the vote sum shows that replicas differ,
  /// returns the same MISMATCH error on every rank. The error names the parameter and the ranks if
  /// there is enough memory for the text. Collective.
  std::optional<Error> find_replica_mismatch(Comm& comm, const OptimizerSettings& settings,
                                             const Vote& vote_sum);

  const FiniteCheck& finite_check() const { return finite_; }
  /// Frees the findings of the finite check. Call this function when FirstUpdate no longer needs
  /// them.
  void forget_findings() { finite_.forget(); }

  /// Describes which data of a parameter the step compares between replicas, for the agreement
  /// table.
  const char* described(int64_t param) const;

 private:
  // Bits that identify checks. kLocal checks this rank's values and involves no other ranks.
  // kRounding is not a check: while it is set, the caller may have rounded the weights in either
  // direction.
  enum : uint8_t { kLocal = 1, kWeights = 2, kGradient = 4, kRounding = 8 };
  /// Returns the first parameter whose replicas differ. Collective.
  int64_t find_param(Comm& comm, bool gradients);

  ReplicaCheck when_ = ReplicaCheck::kFirst;
  FiniteCheck finite_;
  ReplicaHashes hashes_;
  /// For each parameter, the checks that are due, and the checks that this step runs.
  std::vector<uint8_t> due_, now_;
  std::vector<int64_t> by_rank_;  // memory for one number per rank
};

}  // namespace muonrt
