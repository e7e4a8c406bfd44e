/* muonrt/recover.h - after a step that failed: what the ranks that are left have in common. */
#ifndef MUONRT_RECOVER_H
#define MUONRT_RECOVER_H

#include "muonrt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What was settled; the same on every rank. */
typedef int32_t muonrt_recovery_outcome_t;
enum muonrt_recovery_outcome {
  MUONRT_RECOVERY_NONE = 0,           /* no rank was in doubt */
  MUONRT_RECOVERY_ROLLED_FORWARD = 1, /* some rank had committed: now all have */
  MUONRT_RECOVERY_DISCARDED = 2       /* ranks were in doubt, none had committed: none has */
};

/* Of which ranks it is enough that they are survivors. */
typedef int32_t muonrt_survivor_policy_t;
enum muonrt_survivor_policy {
  MUONRT_SURVIVORS_MAJORITY = 0, /* more than half of the optimizer's ranks, or half of them with
                                    rank 0 among them */
  MUONRT_SURVIVORS_ANY = 1       /* unsafe: where a network has parted the ranks, each part may
                                    settle the step otherwise, and both go on; only where the other
                                    ranks are certainly lost */
};

typedef struct muonrt_recovery {
  uint32_t struct_size;
  muonrt_recovery_outcome_t outcome;        /* MUONRT_RECOVERY_... */
  int64_t step;                             /* committed steps, now the same on all these ranks */
  muonrt_survivor_policy_t survivor_policy; /* given by the caller, equal on all survivors;
                                               MUONRT_SURVIVORS_MAJORITY */
  int32_t reserved;
} muonrt_recovery_t;

/* Sets every field to its default; see muonrt/base.h. */
MUONRT_API void muonrt_recovery_init_sized(muonrt_recovery_t* recovery, uint32_t size);
#define muonrt_recovery_init(recovery) \
  muonrt_recovery_init_sized((recovery), sizeof(muonrt_recovery_t))

/* Settles a step that has failed (COMM, TIMEOUT, ABORTED, UNDECIDED, on some ranks perhaps OK). A
 * rank that dies inside the vote may leave some that have committed the step and others that do not
 * know: those commit now what they had staged, with the gradients of that step, which must be bound
 * and unchanged, as must parameters and state; where none has committed, none does. Then parameters
 * and state (muonrt/state.h) are those of `step` committed steps on all ranks of `survivors`; what
 * only lost ranks held is lost; whether they had committed does not matter. Such an optimizer
 * still takes no step: make another over the ranks that are left, from this one's state. It may be
 * called again, with the same or other survivors, and on ranks where nothing has failed.
 * @param survivors  a communicator made after the fault, of ranks of this optimizer, in any order;
 *     host messages alone are sent over it.
 * @param recovery   `survivor_policy` is read, outcome and step are filled; may be NULL; left as it
 *     was where an error is returned.
 * Errors: INVALID_ARGUMENT for a null handle, a wrong struct_size or policy, on this rank alone,
 * whose peers wait. The same on every rank: TORN (a rank's parameters are partly updated, or
 * commits were eager and a rank cannot follow): reload a checkpoint; MISMATCH (not ranks of one
 * optimizer, one of them twice, other policies, or step numbers that no single fault leaves);
 * UNDECIDED (too few ranks for the policy; nothing has changed): call again with more;
 * OUT_OF_MEMORY: call again. COMM,
 * TIMEOUT, ABORTED: of `survivors`; call again with a new one. Blocking; collective over
 * `survivors`. */
MUONRT_API muonrt_status_t muonrt_optimizer_recover(muonrt_optimizer_t* optimizer,
                                                    muonrt_comm_t* survivors,
                                                    muonrt_recovery_t* recovery);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_RECOVER_H */
