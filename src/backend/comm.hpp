#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backend/device.hpp"

namespace muonrt {

/// The most that a rank hands to one allgather of a vote's explanation.
constexpr int64_t kExplanationBytes = 4096;

/// Contiguous bytes to or from one peer; the rank itself may be the peer (its send and its receive
/// then have equal sizes).
struct SendTo {
  int32_t peer;
  const void* data;
  int64_t bytes;
};
struct ReceiveFrom {
  int32_t peer;
  void* data;
  int64_t bytes;
};

/// Copies a message from its sender's buffer to its receiver's, on a thread of the receiver; what
/// it throws is an error of the receiver. When it has returned the message is there; when it has
/// returned or thrown, nobody reads or writes it any more (but for a GPU that did not end its copy
/// some seconds after the deadline).
using CopyMessage = std::function<void(void* to, const void* from, int64_t bytes)>;

/// What one rank sends and receives in an exchange.
struct Messages {
  std::span<const SendTo> sends;
  std::span<const ReceiveFrom> receives;
};

/// How ranks talk. At most one message per ordered pair in an exchange, sizes known to both sides,
/// empty pairs left out by both. The order of exchanges two ranks share is the same on both.
/// Threads: enqueuing from one thread; `abort` from any. Every wait ends: with the data, with
/// TIMEOUT after the transport's deadline, or with the error that a peer published through `abort`.
class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string describe() const = 0;
  /// Kind of stream its operations want.
  virtual StreamKind stream_kind() const = 0;
  /// Whether its operations run on streams of this device and reach its memory.
  virtual bool serves(const Device& device) const { return device.host_reaches_memory(); }
  /// SMs of that device that one of its operations fills at most; 0: its operations run no kernels
  /// that wait for other ranks.
  virtual int occupied_sms() const { return 0; }

  /// All-to-all-v. The spans must stay valid until the work has run.
  virtual void exchange(Stream& stream, std::span<const SendTo> sends,
                        std::span<const ReceiveFrom> receives) = 0;
  /// out <- element-wise maximum over all ranks of f32 values; NaN wins over every number.
  virtual void reduce_max(Stream& stream, const float* in, float* out, int64_t n) = 0;
  /// out <- element-wise sum over all ranks.
  virtual void reduce_sum(Stream& stream, const int64_t* in, int64_t* out, int64_t n) = 0;

  /// Enqueued between what sets *entered (memory that the host reaches) and a reduce_sum: *entered
  /// becomes 0 again where this rank's part of that sum will be zeros, since `abort` came before.
  /// Who has called `abort`, and then finds 0, knows that its part is zeros, or nothing.
  virtual void clear_if_aborted(Stream&, int64_t* /*entered*/) {}

  /// Such an exchange, or a reduction of so many bytes, is to come: takes the memory that it wants,
  /// so that no step does. Sends nothing. Called when an optimizer is created.
  virtual void prepare_exchange(const Messages&) {}
  virtual void prepare_reduction(int64_t) {}

  /// Host side, blocking: `all` receives `bytes` from every rank, in rank order. Collective.
  virtual void allgather(const void* mine, void* all, int64_t bytes) = 0;
  /// A communicator of its own over the same ranks. Collective.
  virtual std::unique_ptr<Comm> duplicate() = 0;

  /// Every later wait ends with TIMEOUT after so long. Errors: INVALID_ARGUMENT unless positive.
  virtual void set_timeout_ms(int64_t ms) = 0;

  /// Publishes an error: pending and later operations of every rank end with it. Any thread.
  virtual void abort(Status status, const std::string& message) noexcept = 0;
  /// What ended operations that have been enqueued, where the streams they were on do not know it
  /// (a GPU's go on after an operation that was aborted, with buffers that hold anything). A
  /// reduction that was ended has not written its output.
  virtual std::optional<Error> error() const { return std::nullopt; }

  /// Bytes that exchanges of this rank have sent to other ranks so far.
  virtual int64_t bytes_sent() const = 0;
  virtual int64_t exchanges() const = 0;
};

}  // namespace muonrt
