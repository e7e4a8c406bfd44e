#include "optimizer/commit_state.hpp"

#include <algorithm>
#include <random>

#include "optimizer/agreement.hpp"

// How a step that failed is told, and how the ranks that are left settle it. The vote's sum does
// not arrive everywhere at once: where a rank dies inside it, some may have committed and others
// not. What has committed stays; the others have staged all that a commit reads, and roll forward.

namespace muonrt {

/// Where a rank stands, for the others.
struct SurvivorState {
  enum Kind : int64_t { kUsable, kFailed, kUndecided, kTorn };

  int64_t kind = kUsable;
  uint64_t identity = 0;              // of the optimizer
  int64_t rank = 0, world = 0;        // in it
  int64_t steps = 0;                  // committed
  int64_t has_staged_step = 0;        // 1: what an open step staged is still there
  int64_t fingerprint = 0;            // kOpen: of the step that it has not heard the vote of
  int64_t committed_fingerprint = 0;  // of the last committed step,
  Vote committed_vote_sum;            // and its vote
  int64_t policy = 0;                 // a SurvivorPolicy
};

namespace {

/// Whether `behind` waits for the vote that `ahead` has heard.
bool may_follow(const SurvivorState& behind, const SurvivorState& ahead) {
  return behind.kind == SurvivorState::kUndecided && behind.steps + 1 == ahead.steps &&
         behind.fingerprint == ahead.committed_fingerprint &&
         vote_passes(ahead.committed_vote_sum, ahead.world, behind.fingerprint);
}

// Throws the same on every rank. @param bringers  room: by rank of the optimizer, who brings it.
void check_identities(const std::vector<SurvivorState>& all, std::vector<int64_t>& bringers) {
  for (size_t r = 0; r < all.size(); ++r) {
    MUONRT_REQUIRE(all[r].world == all[0].world, Status::kMismatch, "recover: rank ", r,
                   " brings an optimizer of ", all[r].world, " ranks, rank 0 one of ", all[0].world,
                   "; bring ranks of one optimizer together");
    MUONRT_REQUIRE(all[r].identity == all[0].identity, Status::kMismatch, "recover: ranks 0 and ",
                   r, " bring different optimizers; bring ranks of one optimizer together");
  }
  std::fill(bringers.begin(), bringers.end(), -1);
  for (size_t r = 0; r < all.size(); ++r) {
    MUONRT_REQUIRE(all[r].rank >= 0 && all[r].rank < std::ssize(bringers), Status::kMismatch,
                   "recover: rank ", r, " brings rank ", all[r].rank, " of an optimizer of ",
                   all[0].world, "; bring ranks of one optimizer together");
    int64_t& bringer = bringers[static_cast<size_t>(all[r].rank)];
    MUONRT_REQUIRE(bringer < 0, Status::kMismatch, "recover: ranks ", bringer, " and ", r,
                   " both bring rank ", all[r].rank, " of the optimizer; bring each survivor once");
    bringer = static_cast<int64_t>(r);
  }
}

/// The rank that has committed most. Throws the same on every rank where there is no way to bring
/// all others there.
const SurvivorState& check_steps(const std::vector<SurvivorState>& all) {
  for (const SurvivorState& s : all) {
    MUONRT_REQUIRE(s.kind != SurvivorState::kTorn, Status::kTorn, "recover: the step of rank ",
                   s.rank, " is torn, behind ", s.steps,
                   " committed ones (its parameters are partly "
                   "updated); reload a checkpoint");
  }
  const auto more = [](const SurvivorState& a, const SurvivorState& b) {
    return a.steps < b.steps;
  };
  const SurvivorState& last = *std::max_element(all.begin(), all.end(), more);
  for (const SurvivorState& s : all) {
    if (s.steps == last.steps) continue;
    MUONRT_REQUIRE(may_follow(s, last), Status::kMismatch, "recover: rank ", s.rank,
                   " of the optimizer has committed ", s.steps, " steps and rank ", last.rank, " ",
                   last.steps, ", which it does not wait for; reload a checkpoint");
    MUONRT_REQUIRE(s.has_staged_step, Status::kTorn, "recover: rank ", last.rank,
                   " of the optimizer has committed step ", last.steps, ", and rank ", s.rank,
                   " keeps nothing of it (commit is eager); reload a checkpoint");
  }
  return last;
}

// Throws the same on every rank. Ranks that are not here may settle the step among themselves: only
// those that cannot be two parts of one world may go ahead.
void check_quorum(const std::vector<SurvivorState>& all) {
  for (size_t r = 1; r < all.size(); ++r) {
    MUONRT_REQUIRE(all[r].policy == all[0].policy, Status::kMismatch,
                   "recover: survivor_policy is ", all[r].policy, " on rank ", r, ", but ",
                   all[0].policy, " on rank 0; pass the same on every rank");
  }
  const auto here = std::ssize(all);
  const int64_t world = all[0].world;
  const bool lowest =
      std::any_of(all.begin(), all.end(), [](const SurvivorState& s) { return s.rank == 0; });
  const bool enough = 2 * here > world || (2 * here == world && lowest);
  MUONRT_REQUIRE(enough || all[0].policy == static_cast<int64_t>(SurvivorPolicy::kAny),
                 Status::kUndecided, "recover: ", here, " of the optimizer's ", world,
                 " ranks are here (more than half are needed, or half with its rank 0), and the "
                 "others may settle the step otherwise; bring more ranks, reload a checkpoint, or "
                 "set survivor_policy if the others are certainly lost");
}

// What else says "voted down, still usable" is not what a stream or a communicator ends with. A
// communicator's own want of memory is COMM by now.
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
      found_of_ranks_(static_cast<size_t>(world)),
      commit_(commit) {
  std::random_device draw;
  identity_ = uint64_t{draw()} << 32 | draw();
}

// Rank 0's.
void CommitState::agree_on_identity(Comm& comm) {
  comm.allgather(&identity_, by_rank_.data(), sizeof identity_);
  identity_ = static_cast<uint64_t>(by_rank_[0]);
}

void CommitState::require_usable() const {
  if (!fatal_error_) return;
  const char* const front = "this optimizer is unusable since an earlier step failed (";
  const char* const status = status_name(fatal_error_->status());
  MUONRT_REQUIRE(recovered_, Status::kInvalidState, front, status, ": ", fatal_error_->message(),
                 "); destroy it and resume from a checkpoint");
  throw make_error(Status::kInvalidState, front, status, ": ", fatal_error_->message(), "); ",
                   steps_,
                   " steps are committed, as the ranks have settled: make another over the ranks "
                   "that are left, from this one's state");
}

void CommitState::agree_on_steps(Comm& comm, int period) {
  std::vector<int64_t>& all = by_rank_;
  const auto error = capture_error([&] { comm.allgather(&steps_, all.data(), sizeof steps_); });
  if (error) {
    comm.abort(error->status(), error->message());
    fatal_error_ = as_fatal_error(error->as_comm_error());
    throw *fatal_error_;
  }
  for (size_t r = 1; r < all.size(); ++r) {
    MUONRT_REQUIRE(all[r] == all[0], Status::kMismatch, "step: number of committed steps is ",
                   all[r], " on rank ", r, ", but ", all[0], " on rank 0 (with block_period ",
                   period, " it says which steps take blocks); set the same on every rank");
  }
}

StepEndState CommitState::end_state(const StepReadback& outcome) const {
  // Flags first, as a stream that is late writes them: a verdict is then no older than they are.
  const bool entered = outcome.vote_sent != 0, passed = outcome.vote_returned != 0;
  return {.vote_sum = outcome.vote_sum,
          .confirm_sum = outcome.confirm_sum,
          .world = world_,
          .fingerprint = fingerprint_,
          .commit = commit_,
          .vote_sent = entered,
          .vote_returned = passed};
}

void CommitState::on_commit(const Vote& vote_sum) {
  ++steps_;
  committed_vote_sum_ = vote_sum;
  committed_fingerprint_ = fingerprint_;
}

// "Not entered" has to be certain, for nobody waits for this rank then. The stream sets the flag
// before it hands the ballot on, and takes it back only where it finds the communicator closed;
// that stays so, what it hands on is zeros, and no sum passes without every rank's consent. The
// communicator is closed before the flag is read: a stream that comes to the vote later, from
// behind a caller's that was late, finds it closed.
Error CommitState::on_failure(const Error& error, const StepReadback& outcome) {
  StepEndState end = end_state(outcome);
  end.failed = true;
  const StepOutcome result = determine_outcome(end);
  Error final_error = as_fatal_error(error);
  if (result == StepOutcome::kTorn) {
    final_error = make_error(Status::kTorn, "the step failed after its vote (", error.message(),
                             "); parameters may be partly updated, reload a checkpoint");
    torn_ = true;
  } else if (result == StepOutcome::kUndecided) {
    final_error =
        make_error(Status::kUndecided, "the step failed inside its vote (", error.message(),
                   "); nothing was committed here, but a peer may have committed; settle "
                   "it with muonrt_optimizer_recover, or reload a checkpoint");
    undecided_ = true;
  }
  fatal_error_ = final_error;
  return final_error;
}

SurvivorState CommitState::standing() const {
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
  SurvivorState mine = standing();
  mine.policy = static_cast<int64_t>(policy);
  std::vector<SurvivorState> all;
  run_collectively(survivors, [&] { all.resize(static_cast<size_t>(survivors.size())); });
  survivors.allgather(&mine, all.data(), sizeof mine);
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
