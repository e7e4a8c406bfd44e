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

/// Of a step: it was voted down, nothing has changed, and the optimizer can go on.
constexpr bool leaves_optimizer_usable(Status status) {
  return status == Status::kInvalidArgument || status == Status::kMismatch ||
         status == Status::kCallback || status == Status::kOutOfMemory;
}

/// What the ranks that are left have settled.
struct Recovery {
  enum class Outcome : int32_t { kNone = 0, kRolledForward = 1, kDiscarded = 2 };
  Outcome outcome = Outcome::kNone;
  int64_t steps = 0;  // committed, on each of them
};

/// Of which ranks it is enough that they are left.
enum class SurvivorPolicy : int32_t {
  kMajority = 0,  // more than half, or half with rank 0
  kAny = 1,       // unsafe: two parts of a world may settle differently
};

struct SurvivorState;

/// How many steps a rank has committed, what it remembers of the last vote, and whether it can go
/// on: what the ranks that are left need to settle a step that failed.
class CommitState {
 public:
  /// Commits on this rank, as its peers have, the step with this stamp; `verdict` is its vote's
  /// sum.
  using RollForward = FunctionRef<void(int64_t fingerprint, const Vote& vote_sum)>;

  CommitState() = default;
  CommitState(int rank, int world, CommitMode commit);
  /// Collective: takes a number that no other optimizer has.
  void agree_on_identity(Comm& comm);

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

  /// Errors: INVALID_STATE where an earlier step has ended the optimizer.
  void require_usable() const;
  /// Collective, before a step that may take one of two plans: another number of steps may mean the
  /// other plan, whose exchanges would not meet those of the peers; so it cannot wait for the vote.
  /// Errors: MISMATCH naming ranks and numbers; those of the communicator, which end the optimizer.
  void agree_on_steps(Comm& comm, int period);

  /// A step begins whose ballot has this stamp.
  void begin_step(int64_t fingerprint) { fingerprint_ = fingerprint; }
  /// What this rank knows of it, but for what errors of streams and the communicator say.
  StepEndState end_state(const StepReadback& outcome) const;
  void on_commit(const Vote& vote_sum);
  /// Room for what every rank found in a step, so that explaining a skip takes no memory.
  std::vector<NonfiniteSource>& nonfinite_by_rank() { return found_of_ranks_; }
  /// It has failed, and the communicator has been aborted: only then may `outcome` be read.
  /// @return  what the caller is told.
  Error on_failure(const Error& error, const StepReadback& outcome);
  /// The optimizer ends, whatever the step was.
  void set_fatal_error(const Error& error) { fatal_error_ = error; }

  /// Collective over the ranks that are left, behind a step that failed. Errors: as
  /// muonrt_optimizer_recover.
  Recovery recover(Comm& survivors, SurvivorPolicy policy, RollForward roll_forward);

 private:
  SurvivorState standing() const;

  uint64_t identity_ = 0;  // of all ranks of this optimizer; before they agree: this one's draw
  int64_t rank_ = 0, world_ = 1;
  std::vector<int64_t> by_rank_;  // room for a number of every rank
  std::vector<NonfiniteSource> found_of_ranks_;
  CommitMode commit_ = CommitMode::kAtomic;
  int64_t steps_ = 0;                  // committed
  int64_t fingerprint_ = 0;            // of the step in progress, or the last
  Vote committed_vote_sum_;            // the vote of the last committed step,
  int64_t committed_fingerprint_ = 0;  // and its stamp
  bool undecided_ = false;             // a step has failed inside its vote
  bool torn_ = false;                  // behind it
  bool recovered_ = false;             // and the ranks have agreed what becomes of it
  std::optional<Error> fatal_error_;
};

}  // namespace muonrt
