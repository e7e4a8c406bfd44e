#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backend/device.hpp"

namespace muonrt {

/// Maximum bytes that a rank contributes to an allgather that explains the result of a vote.
constexpr int64_t kExplanationBytes = 4096;

/// Contiguous bytes to or from one peer. A rank may send to itself if it receives the same size.
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

/// Copies a message from the sender's buffer to the receiver's, on a thread of the receiver. If it
/// throws, the receiver reports the error. The copy is complete when the function returns. After it
/// has returned or thrown, no thread accesses the buffers, except for a GPU whose copy has not
/// ended some seconds after the deadline.
using CopyMessage = std::function<void(void* to, const void* from, int64_t bytes)>;

/// The messages that one rank sends and receives in an exchange.
struct Messages {
  std::span<const SendTo> sends;
  std::span<const ReceiveFrom> receives;
};

/// Communication between ranks. In an exchange, each ordered pair of ranks has at most one message,
/// both sides pass the same size, and both omit empty messages. Two ranks that share exchanges call
/// them in the same order. Threads: one thread enqueues; `abort` from any thread. Every wait ends:
/// with the data, with TIMEOUT, or with the error that a peer published with `abort`.
class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string describe() const = 0;
  /// Returns the kind of stream that the operations need.
  virtual StreamKind stream_kind() const = 0;
  /// Returns whether the operations run on streams of this device and can access its memory.
  virtual bool serves(const Device& device) const { return device.host_reaches_memory(); }
  /// Returns the maximum number of SMs that one operation occupies. 0: no operation runs kernels
  /// that wait for other ranks.
  virtual int occupied_sms() const { return 0; }

  /// All-to-all-v. The spans must stay valid until the work has run.
  virtual void exchange(Stream& stream, std::span<const SendTo> sends,
                        std::span<const ReceiveFrom> receives) = 0;
  /// out <- element-wise maximum of f32 values over all ranks; NaN if a value is NaN.
  virtual void reduce_max(Stream& stream, const float* in, float* out, int64_t n) = 0;
  /// out <- element-wise sum over all ranks.
  virtual void reduce_sum(Stream& stream, const int64_t* in, int64_t* out, int64_t n) = 0;

  /// Resets *entered to 0 if `abort` was called before. Enqueue it after the work that sets
  /// *entered (memory that the host can access) and before a reduce_sum. This rank's terms of that
  /// sum are zeros in this case. So if the host has called `abort` and then reads 0, this rank
  /// contributes zeros or nothing.
  virtual void clear_if_aborted(Stream&, int64_t* /*entered*/) {}

  /// Allocates the memory that an exchange with these messages, or a reduction of this many bytes,
  /// needs, so that no step allocates. Sends nothing. Called when an optimizer is created.
  virtual void prepare_exchange(const Messages&) {}
  virtual void prepare_reduction(int64_t) {}
  /// Enqueues what connects this rank to the peers of all prepared exchanges, and what the prepared
  /// reductions need, so that no step waits for connections. Collective; called once, when an
  /// optimizer is created. All ranks have prepared reductions of the same sizes.
  virtual void connect(Stream&) {}

  /// Host side, blocking: `all` receives `bytes` from every rank, in rank order. Collective.
  virtual void allgather(const void* mine, void* all, int64_t bytes) = 0;
  /// Returns a separate communicator over the same ranks. Collective.
  virtual std::unique_ptr<Comm> duplicate() = 0;

  /// Sets the timeout of later waits. Errors: INVALID_ARGUMENT if `ms` is not positive.
  virtual void set_timeout_ms(int64_t ms) = 0;

  /// Publishes an error: pending and later operations on every rank end with it. Threads: any.
  virtual void abort(Status status, const std::string& message) noexcept = 0;
  /// Returns the error of enqueued operations if their streams do not report it. A GPU stream
  /// continues after an aborted operation, with undefined contents in its buffers. An aborted
  /// reduction has not written its output.
  virtual std::optional<Error> error() const { return std::nullopt; }

  /// Returns the bytes that this rank's exchanges have sent to other ranks so far.
  virtual int64_t bytes_sent() const = 0;
  virtual int64_t exchanges() const = 0;
};

}  // namespace muonrt
