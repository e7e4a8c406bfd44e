#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/comm.hpp"
#include "backend/device.hpp"
#include "backend/ops.hpp"
#include "model/recording.hpp"
#include "plan/machine/profile.hpp"

namespace muonrt {

/// A device that records the enqueued operations. Memory from `allocate` has an address, but must
/// not be read or written; memory from `allocate_shared` is real. Operations that the host enqueues
/// after it has waited for an event cannot start before this event.
class ModelledDevice final : public Device {
 public:
  /// @param profile, rules  They must outlive the device.
  /// @param world  Number of ranks. With a single rank, products use all processors, because there
  ///     are no exchanges.
  ModelledDevice(const MachineProfile& profile, const MatrixRules& rules, int32_t rank, int world);
  ~ModelledDevice() override;

  /// Discards the recorded operations. Call it at the start of a step.
  void begin_step();
  RankRecording& recording() { return recording_; }
  /// Sets the bytes that the ranks of a node use in a step, and how many of these belong to owned
  /// matrices and messages. The caches of the machine may hold some of them.
  void set_footprint(double step, double owned) {
    step_footprint_ = step;
    owned_footprint_ = owned;
  }
  double footprint(bool owned) const { return owned ? owned_footprint_ : step_footprint_; }

  /// Appends an op to the stream. Enqueuing it takes the host one launch time, unless the op
  /// records or waits for an event.
  RecordedOp& append(Stream& stream, OpKind kind);

  std::string describe() const override { return "model of " + profile_.title; }
  void* allocate(int64_t bytes) override;
  void release(void*) noexcept override;
  void* allocate_shared(int64_t bytes) override;
  int64_t allocations() const override { return allocations_; }
  int64_t allocated_bytes() const override { return allocated_bytes_; }
  int64_t objects() const override { return 0; }
  std::unique_ptr<Stream> create_stream(StreamKind kind) override;
  std::unique_ptr<Event> create_event() override;
  void record(Event& event, Stream& stream) override;
  void wait(Stream& stream, const Event& event) override;
  /// Throws NOT_SUPPORTED, because the time of the caller's functions is unknown.
  void call(Stream&, int (*)(void*, void*), void*, int64_t*) override;
  void timestamp(Stream& stream, int64_t* where) override;
  void synchronize(const Event& event, Deadline) override;
  std::optional<Error> error() const override { return std::nullopt; }
  void clear_error() override {}
  Ops& ops() override { return *ops_; }

 private:
  const MachineProfile& profile_;
  std::unique_ptr<Ops> ops_;
  RankRecording recording_;
  double step_footprint_ = 0, owned_footprint_ = 0;
  double host_seconds_ = 0;  // seconds since the host waited for event `host_after_`
  int64_t host_after_ = -1;
  int64_t next_address_ = int64_t{1} << 44;
  int64_t allocations_ = 0, allocated_bytes_ = 0;
  std::vector<std::unique_ptr<char[]>> shared_;
};

/// Records exchanges and reductions on the streams of a ModelledDevice. Calls between the hosts of
/// the ranks are not modelled.
class ModelledComm final : public Comm {
 public:
  /// @param device  It must outlive the communicator.
  ModelledComm(ModelledDevice& device, int world) : device_(device), world_(world) {}

  int rank() const override { return device_.recording().rank; }
  int size() const override { return world_; }
  std::string describe() const override { return "model"; }
  StreamKind stream_kind() const override { return StreamKind::kComm; }
  bool serves(const Device&) const override { return true; }
  void exchange(Stream& stream, std::span<const SendTo> sends,
                std::span<const ReceiveFrom> receives) override;
  void reduce_max(Stream& stream, const float*, float*, int64_t n) override;
  void reduce_sum(Stream& stream, const int64_t*, int64_t*, int64_t n) override;
  /// Throws NOT_SUPPORTED, because the time of an allgather is not modelled.
  void allgather(const void*, void*, int64_t) override;
  std::unique_ptr<Comm> duplicate() override;
  void set_timeout_ms(int64_t) override {}
  void abort(Status, const std::string&) noexcept override {}
  int64_t bytes_sent() const override { return bytes_sent_; }
  int64_t exchanges() const override { return std::ssize(device_.recording().exchanges); }

 private:
  ModelledDevice& device_;
  int world_;
  int64_t bytes_sent_ = 0;
};

}  // namespace muonrt
