// The network faults of a plan: processes end, and connections are reset.
#include <algorithm>

#include "simulation/network.hpp"

namespace simulation {

void Network::kill(int process, bool silently) {
  if (silently) isolate(process, kNever);
  std::vector<int> fds;
  for (const auto& [fd, e] : endpoints_) {
    if (e->process == process) fds.push_back(fd);
  }
  for (const int fd : fds) {
    if (Endpoint* const e = find(fd)) close_endpoint(*e);
  }
  scheduler_.kill(process);
}

void Network::reset_one(int process) {
  std::vector<int> fds;
  for (const auto& [fd, e] : endpoints_) {
    if (e->process == process && e->state == Endpoint::State::kConnected) fds.push_back(fd);
  }
  if (fds.empty()) return;
  const int fd = scheduler_.random().one_of(fds);
  const int peer = find(fd)->peer;
  reset(fd);
  send_reset(peer, process);
}

int Network::open_of(int process) const {
  return static_cast<int>(std::count_if(endpoints_.begin(), endpoints_.end(), [&](const auto& e) {
    return e.second->process == process;
  }));
}

std::vector<Address> Network::listening() const {
  std::vector<Address> out;
  for (const auto& [fd, e] : endpoints_) {
    if (e->state == Endpoint::State::kListening)
      out.push_back({host_of(e->process), e->local.port});
  }
  return out;
}

}  // namespace simulation
