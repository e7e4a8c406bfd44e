#include "optimizer/commit_state.hpp"

#include <algorithm>
#include <random>

#include "optimizer/agreement.hpp"

// If a rank dies during a vote, some ranks may have received the vote sum and committed the step,
// while others have not. A commit is never undone. The other ranks have staged everything that a
// commit reads, so they commit the step later (they roll forward).

namespace muonrt {

/// The commit state of one rank, in the form that the survivors exchange.
struct SurvivorState {
  enum Kind : int64_t { kUsable, kFailed, kUndecided, kTorn };

  int64_t kind = kUsable;
  uint64_t identity = 0;        // identity of the optimizer
  int64_t rank = 0, world = 0;  // rank and size of the optimizer's communicator
  int64_t steps = 0;            // number of committed steps
  int64_t has_staged_step = 0;  // 1 if an undecided step can still be committed (atomic commit)
  int64_t fingerprint = 0;      // kUndecided: fingerprint of the step that is undecided
  int64_t committed_fingerprint = 0;  // fingerprint of the last committed step
  Vote committed_vote_sum;            // vote sum of the last committed step
  int64_t policy = 0;                 // value of SurvivorPolicy
};

namespace {

/// Returns true if `committed` has committed the step that is undecided in `undecided`, and no step
/// after it.
bool may_follow(const SurvivorState& undecided, const SurvivorState& committed) {
  return undecided.kind == SurvivorState::kUndecided && undecided.steps + 1 == committed.steps &&
         undecided.fingerprint == committed.committed_fingerprint &&
         vote_passes(committed.committed_vote_sum, committed.world, undecided.fingerprint);
}

// Checks that the survivors are different ranks of the same optimizer. Throws the same error on
// every rank.
// @param bringers  Scratch memory. Entry r becomes the survivor that was rank r of the optimizer,
//     or -1 if there is none.
void check_identities(const std::vector<SurvivorState>& all, std::vector<int64_t>& bringers) {
  for (size_t r = 0; r < all.size(); ++r) {
    MUONRT_REQUIRE(all[r].world == all[0].world, Status::kMismatch, "recover: rank ", r,
                   " has an optimizer of ", all[r].world, " ranks, but rank 0 has one of ",
                   all[0].world, "; call it on ranks of the same optimizer");
    MUONRT_REQUIRE(all[r].identity == all[0].identity, Status::kMismatch, "recover: ranks 0 and ",
                   r, " have different optimizers; call it on ranks of the same optimizer");
  }
  std::fill(bringers.begin(), bringers.end(), -1);
  for (size_t r = 0; r < all.size(); ++r) {
    MUONRT_REQUIRE(all[r].rank >= 0 && all[r].rank < std::ssize(bringers), Status::kMismatch,
                   "recover: rank ", r, " was rank ", all[r].rank, " of an optimizer of ",
                   all[0].world, " ranks; call it on ranks of the same optimizer");
    int64_t& bringer = bringers[static_cast<size_t>(all[r].rank)];
    MUONRT_REQUIRE(bringer < 0, Status::kMismatch, "recover: ranks ", bringer, " and ", r,
                   " were both rank ", all[r].rank, " of the optimizer; pass each survivor once");
    bringer = static_cast<int64_t>(r);
  }
}

/// Returns the state of a rank that has committed the most steps. Throws the same error on every
/// rank if a rank with fewer steps cannot roll forward to this state.
const SurvivorState& check_steps(const std::vector<SurvivorState>& all) {
  for (const SurvivorState& s : all) {
    MUONRT_REQUIRE(s.kind != SurvivorState::kTorn, Status::kTorn, "recover: the step of rank ",
                   s.rank, " is torn after ", s.steps,
                   " committed steps, so its parameters are partly updated; load a checkpoint");
  }
  const auto more = [](const SurvivorState& a, const SurvivorState& b) {
    return a.steps < b.steps;
  };
  const SurvivorState& last = *std::max_element(all.begin(), all.end(), more);
  for (const SurvivorState& s : all) {
    if (s.steps == last.steps) continue;
    MUONRT_REQUIRE(may_follow(s, last), Status::kMismatch, "recover: rank ", s.rank,
                   " of the optimizer has committed ", s.steps, " steps and rank ", last.rank, " ",
                   last.steps, ", but rank ", s.rank,
                   " can only roll forward by the step that failed; load a checkpoint");
    MUONRT_REQUIRE(s.has_staged_step, Status::kTorn, "recover: rank ", last.rank,
                   " of the optimizer has committed step ", last.steps, ", and rank ", s.rank,
                   " has staged nothing of it, because commit is eager; load a checkpoint");
  }
  return last;
}

// Ranks that do not take part in this recovery may run a separate recovery with a different result.
// A recovery is therefore allowed only if the survivors are a majority, because two groups of
// survivors cannot both be a majority. Throws the same error on every rank.
void check_quorum(const std::vector<SurvivorState>& all) {
  for (size_t r = 1; r < all.size(); ++r) {
    MUONRT_REQUIRE(all[r].policy == all[0].policy, Status::kMismatch,
                   "recover: survivor_policy is ", all[r].policy, " on rank ", r, ", but ",
                   all[0].policy, " on rank 0; pass the same on every rank");
  }
  const auto count = std::ssize(all);
  const int64_t world = all[0].world;
  const bool lowest =
      std::any_of(all.begin(), all.end(), [](const SurvivorState& s) { return s.rank == 0; });
  const bool enough = 2 * count > world || (2 * count == world && lowest);
  MUONRT_REQUIRE(enough || all[0].policy == static_cast<int64_t>(SurvivorPolicy::kAny),
                 Status::kUndecided, "recover: ", count, " of the optimizer's ", world,
                 " ranks are here, but more than half are needed, or half with its rank 0; call it "
                 "on more ranks, load a checkpoint, or set survivor_policy to MUONRT_SURVIVORS_ANY "
                 "if the other ranks have certainly ended");
}

// An error of a stream or a communicator makes the optimizer unusable. A status that would mean
// "the step was rejected, and the optimizer is still usable" is therefore replaced with DEVICE or
// COMM. If an allocation of the communicator failed, the status is already COMM.
Error as_fatal_error(const Error& error) {
  if (!leaves_optimizer_usable(error.status())) return error;
  const bool device = error.status() == Status::kOutOfMemory && !error.is_remote();
  return make_error(device ? Status::kDevice : Status::kComm, error.message());
}

}  // namespace

CommitState::CommitState(int rank, int world, CommitMode commit)
    : rank_(rank),
      world_(world),
      by_rank_(static_cast<size_t>(world)),
      nonfinite_by_rank_(static_cast<size_t>(world)),
      commit_(commit) {
  std::random_device draw;
  identity_ = uint64_t{draw()} << 32 | draw();
}

// All ranks use the random number of rank 0.
void CommitState::agree_on_identity(Comm& comm) {
  comm.allgather(&identity_, by_rank_.data(), sizeof identity_);
  identity_ = static_cast<uint64_t>(by_rank_[0]);
}

void CommitState::require_usable() const {
  if (!fatal_error_) return;
  const char* const front = "this optimizer is unusable since an earlier step failed (";
  const char* const status = status_name(fatal_error_->status());
  MUONRT_REQUIRE(recovered_, Status::kInvalidState, front, status, ": ", fatal_error_->message(),
                 "); destroy it and load a checkpoint");
  throw make_error(Status::kInvalidState, front, status, ": ", fatal_error_->message(), "); ",
                   steps_,
                   " steps are committed on all surviving ranks; create a new optimizer on these "
                   "ranks and call muonrt_optimizer_copy_state()");
}

void CommitState::require_whole(const char* what) const {
  MUONRT_REQUIRE(!torn_, Status::kTorn, what, ": a step is torn after ", steps_,
                 " committed steps, so parameters and state are partly updated; load a checkpoint");
}

bool CommitState::agree_on(Comm& comm, int64_t mine) {
  std::vector<int64_t>& all = by_rank_;
  const auto error = capture_error([&] { comm.allgather(&mine, all.data(), sizeof mine); });
  if (error) {
    comm.abort(error->status(), error->message());
    fatal_error_ = as_fatal_error(error->as_comm_error());
    throw *fatal_error_;
  }
  return std::all_of(all.begin(), all.end(), [mine](int64_t other) { return other == mine; });
}

void CommitState::agree_on_steps(Comm& comm, const char* setting, int period) {
  agree_on(comm, steps_);
  const std::vector<int64_t>& all = by_rank_;
  for (size_t r = 1; r < all.size(); ++r) {
    MUONRT_REQUIRE(all[r] == all[0], Status::kMismatch, "step: number of committed steps is ",
                   all[r], " on rank ", r, ", but ", all[0], " on rank 0, and with ", setting, " ",
                   period,
                   " it selects what the ranks exchange; set the same number on every rank");
  }
}

StepEndState CommitState::end_state(const StepReadback& readback) const {
  // A stream that is late may still write to the readback while this function reads it. This
  // function reads the flags before the vote sums, so the sums are at least as new as the flags.
  const bool sent = readback.vote_sent != 0, returned = readback.vote_returned != 0;
  return {.vote_sum = readback.vote_sum,
          .confirm_sum = readback.confirm_sum,
          .world = world_,
          .fingerprint = fingerprint_,
          .commit = commit_,
          .vote_sent = sent,
          .vote_returned = returned};
}

void CommitState::on_commit(const Vote& vote_sum) {
  ++steps_;
  committed_vote_sum_ = vote_sum;
  committed_fingerprint_ = fingerprint_;
}

// If vote_sent is 0, no other rank may have committed the step. The following rules ensure this:
// * The stream sets the flag before it sends the vote.
// * The stream clears the flag only after the communicator has been aborted. From then on, the
//   stream can only send zeros instead of the vote, so no vote sum can contain the consent of every
//   rank.
// * The communicator is aborted before on_failure() reads the flag. A stream that reaches the vote
//   later, because the caller's stream was late, therefore finds the communicator aborted.
Error CommitState::on_failure(const Error& error, const StepReadback& readback) {
  StepEndState end = end_state(readback);
  end.failed = true;
  const StepOutcome outcome = determine_outcome(end);
  Error final_error = as_fatal_error(error);
  if (outcome == StepOutcome::kTorn) {
    final_error = make_error(Status::kTorn, "the step failed after its vote (", error.message(),
                             "), so parameters may be partly updated; load a checkpoint");
    torn_ = true;
  } else if (outcome == StepOutcome::kUndecided) {
    final_error =
        make_error(Status::kUndecided, "the step failed during its vote (", error.message(),
                   "): this rank did not commit it, but another rank may have; call "
                   "muonrt_optimizer_recover() on the surviving ranks, or load a checkpoint");
    undecided_ = true;
  }
  fatal_error_ = final_error;
  return final_error;
}

SurvivorState CommitState::survivor_state() const {
  SurvivorState out;
  out.kind = !fatal_error_ ? SurvivorState::kUsable
             : torn_       ? SurvivorState::kTorn
             : undecided_  ? SurvivorState::kUndecided
                           : SurvivorState::kFailed;
  out.identity = identity_;
  out.rank = rank_;
  out.world = world_;
  out.steps = steps_;
  out.has_staged_step = commit_ == CommitMode::kAtomic;
  out.fingerprint = fingerprint_;
  out.committed_fingerprint = committed_fingerprint_;
  out.committed_vote_sum = committed_vote_sum_;
  return out;
}

Recovery CommitState::recover(Comm& survivors, SurvivorPolicy policy, RollForward roll_forward) {
  SurvivorState own = survivor_state();
  own.policy = static_cast<int64_t>(policy);
  std::vector<SurvivorState> all;
  run_collectively(survivors, [&] { all.resize(static_cast<size_t>(survivors.size())); });
  survivors.allgather(&own, all.data(), sizeof own);
  check_identities(all, by_rank_);
  check_quorum(all);
  const SurvivorState& last = check_steps(all);
  Recovery out;
  out.steps = last.steps;
  for (const SurvivorState& s : all) {
    if (s.steps < last.steps) out.outcome = Recovery::Outcome::kRolledForward;
    if (s.kind == SurvivorState::kUndecided && out.outcome == Recovery::Outcome::kNone)
      out.outcome = Recovery::Outcome::kDiscarded;
  }
  std::optional<Error> error;
  if (steps_ < last.steps) {
    error = capture_error([&] {
      roll_forward(fingerprint_, last.committed_vote_sum);
      on_commit(last.committed_vote_sum);
      undecided_ = false;
    });
    torn_ = error.has_value();
    if (error)
      fatal_error_ = error =
          make_error(Status::kTorn, "recover: rolling forward failed (", error->message(),
                     "); parameters may be partly updated, reload a checkpoint");
  }
  throw_common_error(survivors, error);
  recovered_ = fatal_error_.has_value();
  return out;
}

}  // namespace muonrt
