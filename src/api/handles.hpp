#pragma once

#include <memory>

#include "comm/host_comm.hpp"
#include "comm/thread_transport.hpp"
#include "optimizer/optimizer.hpp"

struct muonrt_comm {
  muonrt::HostComm comm;
};

struct muonrt_thread_group {
  muonrt::ThreadGroup group;
};

struct muonrt_optimizer {
  std::unique_ptr<muonrt::Optimizer> optimizer;
};
