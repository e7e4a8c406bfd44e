#include "cuda/nccl/nccl_watchdog.hpp"

#include "base/signal_mask.hpp"
#include "cuda/device/guard.hpp"

namespace muonrt::cuda {

using Clock = Deadline::Clock;

NcclWatchdog::NcclWatchdog(int device, int rank, Calls calls)
    : device_(device), rank_(rank), calls_(std::move(calls)), progress_(Clock::now()) {
  const SignalMask mask;
  thread_ = std::thread([this] { run(); });
}

NcclWatchdog::~NcclWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void NcclWatchdog::prepare(int64_t limit) {
  const std::lock_guard lock(mutex_);
  if (std::ssize(spare_) < limit) spare_.push_back(std::make_unique<CudaEvent>(device_));
}

void NcclWatchdog::add(cudaStream_t stream, const char* what, int64_t messages) {
  std::unique_ptr<CudaEvent> done;
  {
    const std::lock_guard lock(mutex_);
    if (reported_) return;
    if (!spare_.empty()) {
      done = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (!done) done = std::make_unique<CudaEvent>(device_);
  // The lock is not held here, because this call blocks while the launch queue is full. In that
  // case, the watchdog needs the lock to end the operation that fills the queue.
  MUONRT_CUDA(cudaEventRecord(done->handle(), stream));
  const std::lock_guard lock(mutex_);
  if (reported_) return;
  if (pending_.empty()) progress_ = Clock::now();
  pending_.push_back({std::move(done), what, count_++, messages});
  messages_ += messages;
  wake_.notify_all();
}

int64_t NcclWatchdog::watched() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(pending_.size());
}

bool NcclWatchdog::has_capacity(int64_t messages, int64_t limit) {
  const std::lock_guard lock(mutex_);
  if (pending_.size() >= 2) collect();
  if (lost_) throw *lost_;
  return pending_.size() < 2 || messages_ + messages <= limit;
}

void NcclWatchdog::enter(const char* what) {
  const std::lock_guard lock(mutex_);
  inside_ = what;
  entered_ = Clock::now();
  if (what) wake_.notify_all();
}

/// Removes the operations that have ended.
void NcclWatchdog::collect() {
  while (!pending_.empty()) {
    const cudaError_t result = cudaEventQuery(pending_.front().done->handle());
    if (result != cudaSuccess) {
      cudaGetLastError();
      if (result != cudaErrorNotReady && !lost_) lost_ = failed_work(device_, result);
      break;
    }
    spare_.push_back(std::move(pending_.front().done));
    messages_ -= pending_.front().messages;
    pending_.pop_front();
    progress_ = Clock::now();
  }
}

std::optional<Error> NcclWatchdog::problem() {
  {
    const std::lock_guard lock(mutex_);
    if (lost_) return lost_;  // the message of NCCL is less precise
  }
  if (const auto seen = calls_.poll_error()) return seen;
  const auto allowed = std::chrono::milliseconds(calls_.timeout_ms());
  const std::lock_guard lock(mutex_);
  if (inside_ && Clock::now() - entered_ >= allowed) {
    return Error(Status::kTimeout,
                 cat(inside_, " on rank ", rank_, " (nccl) has not returned from NCCL for ",
                     allowed.count(), " ms, with ", pending_.size(),
                     " operations before it; check whether all ranks are still running"));
  }
  if (pending_.empty() || Clock::now() - progress_ < allowed) return std::nullopt;
  const Operation& first = pending_.front();
  return Error(
      Status::kTimeout,
      cat(first.what, " #", first.number, " on rank ", rank_, " (nccl) did not end within ",
          allowed.count(), " ms, with ", pending_.size() - 1,
          " operations after it; check whether all ranks are still running"));
}

void NcclWatchdog::run() {
  try {
    MUONRT_CUDA(cudaSetDevice(device_));  // remains current until the thread ends
    const RelaxedCapture relaxed;
    while (true) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock,
                   [this] { return stop_ || ((!pending_.empty() || inside_) && !reported_); });
        if (stop_) return;
        collect();
        if (pending_.empty() && !inside_) continue;
      }
      if (const auto error = problem()) {
        {
          const std::lock_guard lock(mutex_);
          reported_ = true;
        }
        calls_.report(*error);
        continue;
      }
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, std::chrono::milliseconds(1), [this] { return stop_; });
    }
  } catch (const Error& error) {  // the device is lost
    calls_.report(error);
  } catch (const std::exception& error) {
    calls_.report(Error(Status::kInternal, error.what()));
  }
}

}  // namespace muonrt::cuda
