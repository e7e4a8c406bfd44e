#pragma once

#include <memory>

#include "comm/host_comm.hpp"
#include "comm/thread_transport.hpp"
#include "optimizer/optimizer.hpp"

struct muonrt_comm {
  explicit muonrt_comm(std::unique_ptr<muonrt::Transport> transport) : host(std::move(transport)) {}

  muonrt::HostComm host;                 // moves the caller's host memory
  std::unique_ptr<muonrt::Comm> device;  // moves what an optimizer has on a GPU; null: host memory

  muonrt::Comm& for_optimizer() { return device ? *device : host; }
  void abort(muonrt::Status status, const std::string& message) noexcept {
    if (device) device->abort(status, message);
    // All that was made from this communicator works on duplicates of the transport.
    host.transport().abort_family(status, message);
  }
};

struct muonrt_thread_group {
  muonrt::ThreadGroup group;
};

struct muonrt_optimizer {
  std::unique_ptr<muonrt::Optimizer> optimizer;
};
