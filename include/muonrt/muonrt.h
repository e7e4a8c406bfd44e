/* muonrt/muonrt.h - everything but what needs a foreign header's types (muonrt/mpi.h). */
#ifndef MUONRT_MUONRT_H
#define MUONRT_MUONRT_H

#include "muonrt/base.h"
#include "muonrt/comm.h"
#include "muonrt/health.h"
#include "muonrt/layout.h"
#include "muonrt/nccl.h"
#include "muonrt/optimizer.h"
#include "muonrt/rendezvous.h"
#include "muonrt/routing.h"
#include "muonrt/state.h"
#include "muonrt/strategies.h"
#include "muonrt/transport.h"

#endif /* MUONRT_MUONRT_H */
