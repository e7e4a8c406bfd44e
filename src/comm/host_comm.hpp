#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "backend/comm.hpp"
#include "comm/transport.hpp"

namespace muonrt {

/// A Comm for host memory. Runs the operations of a Transport as tasks of a host stream. Enqueueing
/// a task does not allocate. If an operation fails, the transport publishes the error to the peers,
/// and the task throws it, so the stream keeps the error. Must not be destroyed while one of its
/// tasks is pending.
class HostComm final : public Comm {
 public:
  explicit HostComm(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  /// Returns a description, for example "thread, 4 ranks". It is the same on every rank.
  std::string describe() const override;
  StreamKind stream_kind() const override;

  /// Errors: INTERNAL if `stream` is not a host stream. All other errors are thrown by the task.
  void exchange(Stream& stream, std::span<const SendTo> sends,
                std::span<const ReceiveFrom> receives) override;
  void reduce_max(Stream& stream, const float* in, float* out, int64_t n) override;
  void reduce_sum(Stream& stream, const int64_t* in, int64_t* out, int64_t n) override;

  void clear_if_aborted(Stream& stream, int64_t* entered) override;

  void prepare_reduction(int64_t bytes) override { transport_->prepare_reduction(bytes); }

  /// Waits for a running task of this rank. Do not call this function while other tasks are
  /// pending: the order of operations could then differ between ranks.
  void allgather(const void* mine, void* all, int64_t bytes) override;
  std::unique_ptr<Comm> duplicate() override;

  void set_timeout_ms(int64_t ms) override { transport_->set_timeout_ms(ms); }
  void abort(Status status, const std::string& message) noexcept override;

  int64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }
  /// Returns the number of completed exchanges, including exchanges without a message.
  int64_t exchanges() const override { return exchanges_.load(std::memory_order_relaxed); }

  Transport& transport() { return *transport_; }

 private:
  template <class Function>
  void enqueue(Stream& stream, Function function);

  std::unique_ptr<Transport> transport_;
  std::mutex mutex_;  // locked during an operation
  std::atomic<int64_t> bytes_sent_ = 0, exchanges_ = 0;
};

}  // namespace muonrt
