/* muonrt/muonrt.h - everything but what needs a foreign header's types (muonrt/mpi.h), and
 * muonrt/dlpack.h.
 *
 * After fork() the parent's handles are of no use in the child: their threads and connections stay
 * with the parent. Calls return INVALID_STATE, and destroy frees nothing and removes nothing.
 * Create communicators and optimizers of the child's own instead. */
#ifndef MUONRT_MUONRT_H
#define MUONRT_MUONRT_H

#include "muonrt/allocator.h"
#include "muonrt/base.h"
#include "muonrt/comm.h"
#include "muonrt/distributed.h"
#include "muonrt/health.h"
#include "muonrt/inspect.h"
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
