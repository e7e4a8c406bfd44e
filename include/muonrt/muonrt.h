/**
 * @file muonrt/muonrt.h
 * Includes all headers of muonrt's C interface, except for mpi.h, mpi_comm.h and dlpack.h.
 *
 * mpi.h and mpi_comm.h belong to the library muonrt_mpi, and mpi_comm.h includes <mpi.h>. dlpack.h
 * is header-only. If you need one of these three headers, include it yourself.
 *
 * @par fork()
 * A child process cannot use the handles of its parent, because the threads and connections of
 * these handles exist only in the parent. In the child, every function that receives such a handle
 * returns MUONRT_ERROR_INVALID_STATE. The destroy functions accept the handle, but they free
 * nothing, and they neither remove files nor close connections of the parent. Create new
 * communicators and optimizers in the child.
 */
#ifndef MUONRT_MUONRT_H
#define MUONRT_MUONRT_H

#include "muonrt/allocator.h"
#include "muonrt/base.h"
#include "muonrt/checkpoint.h"
#include "muonrt/checkpoint_reader.h"
#include "muonrt/comm.h"
#include "muonrt/distributed.h"
#include "muonrt/group.h"
#include "muonrt/health.h"
#include "muonrt/inspect.h"
#include "muonrt/layout.h"
#include "muonrt/nccl.h"
#include "muonrt/optimizer.h"
#include "muonrt/orthogonalize.h"
#include "muonrt/param.h"
#include "muonrt/plan.h"
#include "muonrt/recover.h"
#include "muonrt/rendezvous.h"
#include "muonrt/routing.h"
#include "muonrt/state.h"
#include "muonrt/step.h"
#include "muonrt/step_async.h"
#include "muonrt/strategies.h"
#include "muonrt/transport.h"
#include "muonrt/tuning.h"

#endif /* MUONRT_MUONRT_H */
