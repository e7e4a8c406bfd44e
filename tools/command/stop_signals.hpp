#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

namespace muonrt::tool {

/// While it lives, SIGINT and SIGTERM (which mpirun sends to its ranks when it is interrupted) come
/// to a thread of its own: the first calls `first` with its number, a second one ends the process.
/// Threads started meanwhile never see them: there are libraries whose products do not survive a
/// signal handler on the thread that computes (dnnl_sgemm of oneDNN 2.6). Made before any other
/// thread.
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
