#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

namespace muonrt::tool {

/// Handles SIGINT and SIGTERM in a separate thread as long as this object exists; mpirun sends
/// SIGTERM to its ranks when it is interrupted. The first signal calls `first` with the signal
/// number, and a second signal ends the process. Threads that are started later do not receive
/// these signals, because a signal handler can break a product that is being computed on the same
/// thread (dnnl_sgemm of oneDNN 2.6). Create this object before any other thread.
class StopSignals {
 public:
  explicit StopSignals(std::function<void(int)> first);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  sigset_t watched_, former_;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

}  // namespace muonrt::tool
