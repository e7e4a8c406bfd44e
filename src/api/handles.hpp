#pragma once

#include <memory>

#include "api/offspring.hpp"
#include "comm/host_comm.hpp"
#include "comm/thread_transport.hpp"
#include "optimizer/optimizer.hpp"

struct muonrt_comm {
  explicit muonrt_comm(std::unique_ptr<muonrt::Transport> transport) : host(std::move(transport)) {}

  muonrt::HostComm host;                 // moves the caller's host memory
  std::unique_ptr<muonrt::Comm> device;  // moves what an optimizer has on a GPU; null: host memory
  std::shared_ptr<muonrt::api::Offspring> offspring = std::make_shared<muonrt::api::Offspring>();
  muonrt::api::Membership membership;  // last: it ends first

  muonrt::Comm& for_optimizer() { return device ? *device : host; }
  void abort(muonrt::Status status, const std::string& message) noexcept {
    if (device) device->abort(status, message);
    host.abort(status, message);
    offspring->abort(status, message);
  }
};

struct muonrt_thread_group {
  muonrt::ThreadGroup group;
};

struct muonrt_optimizer {
  std::unique_ptr<muonrt::Optimizer> optimizer;
  muonrt::api::Membership membership;
};
