#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "backend/allocator.hpp"
#include "backend/device.hpp"

namespace muonrt::host {

struct HostDeviceOptions {
  int threads = 1;  // number of threads for one op, including the stream's thread; >= 1
  /// If true, uses portable products, which are slow but bitwise identical on every machine.
  bool portable_gemm = false;
  Allocator allocator = {};  // the caller's functions, if any
};

/// Creates the host device. It uses the memory of the process, and its streams are threads. These
/// threads block signals and use the default floating-point environment.
/// Errors: INVALID_ARGUMENT if an option is invalid; OUT_OF_MEMORY if a thread cannot be started.
std::unique_ptr<Device> make_host_device(const HostDeviceOptions& options);

/// Returns true if the products of this build use the processor's instructions for bf16.
bool multiplies_bf16();

class HostOps;
class StreamScheduler;

class HostDevice final : public Device {
 public:
  explicit HostDevice(const HostDeviceOptions& options);
  ~HostDevice() override;

  std::string describe() const override;

  void* allocate(int64_t bytes) override;
  void release(void* memory) noexcept override;
  int64_t allocations() const override { return allocations_; }
  int64_t allocated_bytes() const override { return allocated_bytes_; }
  int64_t objects() const override { return objects_ + queue_growths(); }

  std::unique_ptr<Stream> create_stream(StreamKind kind) override;
  std::unique_ptr<Event> create_event() override;
  void record(Event& event, Stream& stream) override;
  void wait(Stream& stream, const Event& event) override;
  void call(Stream& stream, int (*function)(void*, void*), void* argument,
            int64_t* failed) override;
  /// Writes the time of the steady clock in nanoseconds.
  void timestamp(Stream& stream, int64_t* where) override;
  /// Runs the work of streams of kind kCommOnCaller, in order, while it waits.
  void synchronize(const Event& event, Deadline deadline) override;

  std::optional<Error> error() const override;
  void clear_error() override;

  Ops& ops() override;

  /// Returns how often the queues of streams have grown so far. This number does not grow after the
  /// first steps.
  int64_t queue_growths() const;

 private:
  void* take(int64_t bytes) const;

  const Allocator allocator_;
  std::shared_ptr<StreamScheduler> scheduler_;
  std::atomic<int64_t> allocations_{0}, allocated_bytes_{0}, objects_{0};
  std::unique_ptr<HostOps> ops_;  // last, because its destructor releases memory
};

}  // namespace muonrt::host
