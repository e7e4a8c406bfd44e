#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/comm.hpp"
#include "backend/scalars.hpp"
#include "base/function_ref.hpp"
#include "optimizer/step_outcome.hpp"
#include "optimizer/step_report.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

/// Returns true if `status` means that the vote rejected the step. Such a step has changed nothing,
/// and the optimizer can still be used.
constexpr bool leaves_optimizer_usable(Status status) {
  return status == Status::kInvalidArgument || status == Status::kMismatch ||
         status == Status::kCallback || status == Status::kOutOfMemory;
}

/// The result of recover(). It is equal on all surviving ranks.
struct Recovery {
  enum class Outcome : int32_t { kNone = 0, kRolledForward = 1, kDiscarded = 2 };
  Outcome outcome = Outcome::kNone;
  int64_t steps = 0;  // number of committed steps on every survivor
};

/// The number of ranks that must survive for a recovery.
enum class SurvivorPolicy : int32_t {
  kMajority = 0,  // more than half of the ranks, or half including rank 0
  kAny = 1,       // unsafe, because two groups of survivors may decide differently
};

struct SurvivorState;

/// Stores the number of committed steps of a rank, its last vote, and the error that made the
/// optimizer unusable, if there is one. The surviving ranks use these values to decide whether to
/// commit a step that failed.
class CommitState {
 public:
  /// Commits, on this rank, a step that other ranks have already committed.
  using RollForward = FunctionRef<void(int64_t fingerprint, const Vote& vote_sum)>;

  CommitState() = default;
  CommitState(int rank, int world, CommitMode commit);
  /// Sets a random identity, which is equal on all ranks of the optimizer. Collective.
  void agree_on_identity(Comm& comm);

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

  /// Checks that the optimizer can be used. Errors: INVALID_STATE if an earlier step has made it
  /// unusable.
  void require_usable() const;
  /// Checks that no step has failed with TORN. Errors: TORN.
  void require_whole(const char* what) const;
  uint64_t identity() const { return identity_; }
  /// Compares the step numbers of all ranks. Call this function before a step whose exchanges
  /// depend on the step number: ranks with different numbers could start exchanges that do not
  /// match, and would never reach the vote. Collective.
  /// Errors: MISMATCH, with ranks and numbers; any error of the communicator, which makes the
  /// optimizer unusable.
  /// @param setting, period  The setting that makes the exchanges depend on the step number, for
  ///     the error message.
  void agree_on_steps(Comm& comm, const char* setting, int period);
  /// Returns true if `mine` is equal on all ranks. Collective. Errors: any error of the
  /// communicator, which makes the optimizer unusable.
  bool agree_on(Comm& comm, int64_t mine);

  /// Stores the fingerprint of the step that is starting.
  void begin_step(int64_t fingerprint) { fingerprint_ = fingerprint; }
  /// Returns the end state of the step according to its readback. Sets neither `failed` nor
  /// `comm_failed`.
  StepEndState end_state(const StepReadback& readback) const;
  /// Counts the step as committed.
  /// @param vote_sum  Sum of the votes of the step.
  void on_commit(const Vote& vote_sum);
  /// Returns memory for the findings of all ranks. It is allocated in advance, because
  /// explain_skip() must not allocate.
  std::vector<NonfiniteSource>& nonfinite_by_rank() { return nonfinite_by_rank_; }
  /// Makes the optimizer unusable after the step has failed. Abort the communicator before the
  /// call, because until then the readback may change.
  /// @return  The error for the caller: TORN, UNDECIDED, or `error` itself.
  Error on_failure(const Error& error, const StepReadback& readback);
  /// Makes the optimizer unusable with this error, whatever the outcome of the step.
  void set_fatal_error(const Error& error) { fatal_error_ = error; }

  /// Brings the surviving ranks to the same number of committed steps after a step has failed.
  /// Collective over the survivors. Errors: the same as muonrt_optimizer_recover().
  Recovery recover(Comm& survivors, SurvivorPolicy policy, RollForward roll_forward);

 private:
  SurvivorState survivor_state() const;

  /// A random number of this rank. After agree_on_identity(), it is equal on all ranks.
  uint64_t identity_ = 0;
  int64_t rank_ = 0, world_ = 1;
  std::vector<int64_t> by_rank_;  // memory for one number per rank
  std::vector<NonfiniteSource> nonfinite_by_rank_;
  CommitMode commit_ = CommitMode::kAtomic;
  int64_t steps_ = 0;                  // number of committed steps
  int64_t fingerprint_ = 0;            // fingerprint of the step in progress, or of the last step
  Vote committed_vote_sum_;            // vote sum of the last committed step
  int64_t committed_fingerprint_ = 0;  // fingerprint of the last committed step
  bool undecided_ = false;             // true if a step has failed during its vote
  bool torn_ = false;                  // true if a step has failed after its vote
  bool recovered_ = false;             // true if recover() has succeeded after the failure
  std::optional<Error> fatal_error_;
};

}  // namespace muonrt
