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

/// Whether a step that returned `status` was rejected by the vote: nothing has changed, and the
/// optimizer can be used again.
constexpr bool leaves_optimizer_usable(Status status) {
  return status == Status::kInvalidArgument || status == Status::kMismatch ||
         status == Status::kCallback || status == Status::kOutOfMemory;
}

/// The result of `recover`, which is the same on all surviving ranks.
struct Recovery {
  enum class Outcome : int32_t { kNone = 0, kRolledForward = 1, kDiscarded = 2 };
  Outcome outcome = Outcome::kNone;
  int64_t steps = 0;  // committed steps on every survivor
};

/// How many ranks must survive for a recovery.
enum class SurvivorPolicy : int32_t {
  kMajority = 0,  // more than half, or half with rank 0
  kAny = 1,       // unsafe: two groups of survivors may decide differently
};

struct SurvivorState;

/// The committed steps of a rank, its last vote, and the error that ended the optimizer, if any.
/// From these the surviving ranks decide what becomes of a step that failed.
class CommitState {
 public:
  /// Commits on this rank the step with this fingerprint, which other ranks have committed.
  /// `vote_sum` is the sum of the votes of that step.
  using RollForward = FunctionRef<void(int64_t fingerprint, const Vote& vote_sum)>;

  CommitState() = default;
  CommitState(int rank, int world, CommitMode commit);
  /// Gives the optimizer a random identity, the same on all its ranks. Collective.
  void agree_on_identity(Comm& comm);

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

  /// Errors: INVALID_STATE if an earlier step has ended the optimizer.
  void require_usable() const;
  /// Errors: TORN if a step has ended torn.
  void require_whole(const char* what) const;
  uint64_t identity() const { return identity_; }
  /// Compares the step numbers of all ranks. Call it before a step whose exchanges depend on its
  /// number: those of ranks with different numbers might not match, so the vote would be too late.
  /// Collective.
  /// Errors: MISMATCH, naming ranks and numbers; those of the communicator, which end the
  /// optimizer.
  /// @param setting, period  why the exchanges depend on it, for the message.
  void agree_on_steps(Comm& comm, const char* setting, int period);
  /// Returns whether `mine` is equal on all ranks. Collective. Errors: those of the communicator,
  /// which end the optimizer.
  bool agree_on(Comm& comm, int64_t mine);

  /// Notes the fingerprint of the step that begins.
  void begin_step(int64_t fingerprint) { fingerprint_ = fingerprint; }
  /// The end state of the step from its readback. Errors of streams and of the communicator are not
  /// included.
  StepEndState end_state(const StepReadback& readback) const;
  /// Counts the step as committed. @param vote_sum  the sum of its votes.
  void on_commit(const Vote& vote_sum);
  /// Memory for the findings of all ranks, so that explain_skip does not allocate.
  std::vector<NonfiniteSource>& nonfinite_by_rank() { return nonfinite_by_rank_; }
  /// Call it after the step has failed and the communicator has been aborted; before the abort the
  /// readback is not final. Ends the optimizer.
  /// @return  the error for the caller: TORN, UNDECIDED, or `error` itself.
  Error on_failure(const Error& error, const StepReadback& readback);
  /// Ends the optimizer with this error, whatever the outcome of the step is.
  void set_fatal_error(const Error& error) { fatal_error_ = error; }

  /// Brings the surviving ranks to the same number of committed steps after a step that failed.
  /// Collective over the survivors. Errors: as muonrt_optimizer_recover().
  Recovery recover(Comm& survivors, SurvivorPolicy policy, RollForward roll_forward);

 private:
  SurvivorState survivor_state() const;

  uint64_t identity_ = 0;  // equal on all ranks after agree_on_identity; before, this rank's number
  int64_t rank_ = 0, world_ = 1;
  std::vector<int64_t> by_rank_;  // memory for one number of each rank
  std::vector<NonfiniteSource> nonfinite_by_rank_;
  CommitMode commit_ = CommitMode::kAtomic;
  int64_t steps_ = 0;                  // committed steps
  int64_t fingerprint_ = 0;            // of the step in progress, or of the last one
  Vote committed_vote_sum_;            // of the last committed step
  int64_t committed_fingerprint_ = 0;  // of the last committed step
  bool undecided_ = false;             // a step has failed during its vote
  bool torn_ = false;                  // a step has failed after its vote
  bool recovered_ = false;             // `recover` has succeeded after the failure
  std::optional<Error> fatal_error_;
};

}  // namespace muonrt
