#include "host/host_device.hpp"

#include <chrono>
#include <cstdlib>

#include "base/checked.hpp"
#include "base/log.hpp"
#include "base/signal_mask.hpp"
#include "host/host_ops.hpp"
#include "host/stream_scheduler.hpp"

namespace muonrt::host {

namespace {

constexpr int32_t kHostIndex = -1;  // the device index that the caller's allocator receives

std::unique_ptr<HostOps> make_ops(HostDevice& device, const HostDeviceOptions& options) {
  const SignalMask mask;
  if (!options.portable_gemm && &default_kernel() == &portable_kernel())
    log(LogLevel::kWarning, [] {
      return std::string(
          "products use portable loops, which are slow, because this build has no oneDNN or oneDNN "
          "does not support this processor");
    });
  return std::make_unique<HostOps>(device, options.threads,
                                   options.portable_gemm ? portable_kernel() : default_kernel(),
                                   best_isa());
}

}  // namespace

std::unique_ptr<Device> make_host_device(const HostDeviceOptions& options) {
  return std::make_unique<HostDevice>(options);
}

bool multiplies_bf16() { return default_kernel().supports_bf16(); }

HostDevice::HostDevice(const HostDeviceOptions& options)
    : allocator_(options.allocator),
      scheduler_(std::make_shared<StreamScheduler>()),
      ops_(make_ops(*this, options)) {}

HostDevice::~HostDevice() = default;

std::string HostDevice::describe() const {
  return cat("host ", isa_identity(), " ", ops_->kernel_identity());
}

void* HostDevice::take(int64_t bytes) const {
  void* block = nullptr;
  MUONRT_REQUIRE(posix_memalign(&block, kMemoryAlignment, static_cast<size_t>(bytes)) == 0,
                 Status::kOutOfMemory, "cannot allocate ", human_bytes(bytes), " in addition to ",
                 human_bytes(allocated_bytes_),
                 "; reduce chunk_bytes or window, or use more ranks");
  return block;
}

void* HostDevice::allocate(int64_t bytes) {
  MUONRT_REQUIRE(bytes >= 0, Status::kInvalidArgument, "cannot allocate ", bytes,
                 " bytes; pass 0 or more");
  if (bytes == 0) return nullptr;
  // The size of each block is stored in the kMemoryAlignment bytes before the block, so the block
  // itself is aligned.
  const int64_t whole = checked_add(bytes, kMemoryAlignment);
  void* const block =
      allocator_.allocate ? allocator_.take(whole, kHostIndex, nullptr) : take(whole);
  *static_cast<int64_t*>(block) = bytes;
  ++allocations_;
  allocated_bytes_ += bytes;
  return static_cast<char*>(block) + kMemoryAlignment;
}

void HostDevice::release(void* memory) noexcept {
  if (memory == nullptr) return;
  void* block = static_cast<char*>(memory) - kMemoryAlignment;
  const int64_t bytes = *static_cast<const int64_t*>(block);
  allocated_bytes_ -= bytes;
  if (allocator_.allocate) {
    allocator_.release(allocator_.state, block, bytes + kMemoryAlignment, kHostIndex, nullptr);
  } else {
    std::free(block);
  }
}

std::unique_ptr<Stream> HostDevice::create_stream(StreamKind kind) {
  ++objects_;
  return scheduler_->create_stream(kind);
}
std::unique_ptr<Event> HostDevice::create_event() {
  ++objects_;
  return scheduler_->create_event();
}
void HostDevice::record(Event& event, Stream& stream) { scheduler_->record(event, stream); }
void HostDevice::wait(Stream& stream, const Event& event) { scheduler_->wait(stream, event); }
void HostDevice::call(Stream& stream, int (*function)(void*, void*), void* argument,
                      int64_t* failed) {
  host_stream(stream).enqueue(Task([=] {
    if (function(argument, nullptr) != 0) *failed = 1;
  }));
}
void HostDevice::timestamp(Stream& stream, int64_t* where) {
  host_stream(stream).enqueue(Task([where] {
    using std::chrono::nanoseconds;
    *where =
        std::chrono::duration_cast<nanoseconds>(Deadline::Clock::now().time_since_epoch()).count();
  }));
}
void HostDevice::synchronize(const Event& event, Deadline deadline) {
  scheduler_->synchronize(event, deadline);
}
std::optional<Error> HostDevice::error() const { return scheduler_->error(); }
void HostDevice::clear_error() { scheduler_->clear_error(); }
Ops& HostDevice::ops() { return *ops_; }
int64_t HostDevice::queue_growths() const { return scheduler_->growths(); }

}  // namespace muonrt::host
