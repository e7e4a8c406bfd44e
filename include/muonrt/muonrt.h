/* muonrt/muonrt.h - everything but what needs a foreign header's types (muonrt/mpi.h), and
 * muonrt/dlpack.h.
 *
 * After fork() the child must call no function on what its parent made, not even destroy: threads,
 * connections and locks stayed with the parent, and a call may wait for ever or speak on the
 * parent's connections. exec, or make everything anew in the child before the parent makes any. */
#ifndef MUONRT_MUONRT_H
#define MUONRT_MUONRT_H

#include "muonrt/allocator.h"
#include "muonrt/base.h"
#include "muonrt/comm.h"
#include "muonrt/distributed.h"
#include "muonrt/health.h"
#include "muonrt/layout.h"
#include "muonrt/nccl.h"
#include "muonrt/optimizer.h"
#include "muonrt/param.h"
#include "muonrt/recover.h"
#include "muonrt/rendezvous.h"
#include "muonrt/routing.h"
#include "muonrt/state.h"
#include "muonrt/strategies.h"
#include "muonrt/transport.h"

#endif /* MUONRT_MUONRT_H */
