#include "cuda/nccl/shared_nccl_comm.hpp"

#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "base/signal_mask.hpp"
#include "cuda/device/guard.hpp"

namespace muonrt::cuda {

namespace {

constexpr auto kBlockedCall = std::chrono::milliseconds(1000);

}  // namespace

SharedNcclComm::SharedNcclComm(int device)
    : device_(device), closed_(device, sizeof(int32_t), true) {
  *closed_.as<int32_t>() = 0;
}

std::shared_ptr<SharedNcclComm> SharedNcclComm::for_borrowed_handle(NcclHandle handle, int device) {
  static std::mutex mutex;
  static std::map<std::pair<NcclHandle, int>, std::weak_ptr<SharedNcclComm>> known;
  const std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  const auto found = known.find({handle, device});
  if (auto shared = found == known.end() ? nullptr : found->second.lock();
      shared && !shared->is_released()) {
    shared->require_open();
    return shared;
  }
  auto made = std::make_shared<SharedNcclComm>(device);
  made->handle = handle;
  known[{handle, device}] = made;
  return made;
}

bool SharedNcclComm::fail(const Error& error) noexcept {
  const std::lock_guard lock(error_mutex_);
  if (error_) return false;
  error_ = error;
  // `closed` is set before NCCL's own abort flag, even on machines that reorder stores.
  std::atomic_ref(*closed_.as<int32_t>()).store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return true;
}

std::optional<Error> SharedNcclComm::error() const {
  const std::lock_guard lock(error_mutex_);
  return error_;
}

void SharedNcclComm::require_open() const {
  if (const auto first = error()) throw *first;
}

std::unique_lock<std::timed_mutex> SharedNcclComm::enter(int64_t timeout_ms) {
  std::unique_lock lock(nccl, std::chrono::milliseconds(timeout_ms));
  require_open();
  MUONRT_REQUIRE(
      lock, Status::kTimeout,
      "nccl_comm is in use by a call of another communicator that borrows it; wait until "
      "that communicator has no operation outstanding");
  return lock;
}

bool SharedNcclComm::is_released() const {
  const std::lock_guard lock(end_mutex_);
  return released_;
}

void SharedNcclComm::start_teardown(Call call) noexcept {
  {
    const std::lock_guard lock(end_mutex_);
    if (teardown_deadline_) return;
    teardown_deadline_ = Deadline::in_ms(kTeardownTimeoutMs);
  }
  try {
    const SignalMask mask;
    std::thread([self = shared_from_this(), call] { self->end(call); }).detach();
  } catch (...) {  // no thread can be created
    end(call);
  }
}

void SharedNcclComm::wait_for_teardown() noexcept {
  std::unique_lock lock(end_mutex_);
  if (teardown_deadline_)
    ended_.wait_until(lock, teardown_deadline_->at(), [this] { return released_; });
}

void SharedNcclComm::end(Call call) noexcept {
  const QuietDeviceGuard guard(device_);
  {
    // A thread that is inside NCCL gets one second to return, because NCCL checks for an abort
    // while it waits for a peer. A thread that locks `nccl` afterwards finds the error and does not
    // call NCCL.
    const std::unique_lock lock(nccl, kBlockedCall);
  }
  if (handle) call(handle);
  {
    const std::lock_guard lock(end_mutex_);
    released_ = true;
  }
  ended_.notify_all();
}

bool SharedNcclComm::is_tearing_down() const {
  const std::lock_guard lock(end_mutex_);
  return teardown_deadline_.has_value();
}

void SharedNcclComm::keep_until(std::shared_ptr<const CudaEvent> last) {
  const std::lock_guard lock(end_mutex_);
  closed_.keep_until(std::move(last));
}

}  // namespace muonrt::cuda
