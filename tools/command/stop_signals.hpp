#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

namespace muonrt::tool {

/// Handles SIGINT and SIGTERM in a separate thread as long as this object exists. At the first
/// signal, calls `first` with the signal number. A second signal terminates the process. If mpirun
/// is interrupted, it sends SIGTERM to its ranks. Create this object before any other thread, so
/// that all threads block these signals. Otherwise a signal handler could corrupt a product that is
/// being computed on the same thread (dnnl_sgemm of oneDNN 2.6).
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
