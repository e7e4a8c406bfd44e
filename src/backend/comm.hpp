#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backend/device.hpp"

namespace muonrt {

/// Maximum number of bytes that a rank passes to an allgather when the ranks exchange the reason
/// for a rejected or skipped step.
constexpr int64_t kExplanationBytes = 4096;

/// A message to a peer, in contiguous memory. A rank may send to itself if it also receives a
/// message of the same size from itself.
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

/// Copies a message from the sender's buffer to the receiver's buffer, on a thread of the receiver.
/// The copy is complete when the function returns. If the function throws, the receiver reports the
/// error. Afterwards no thread accesses the buffers, with one exception: a GPU copy may still be
/// running if it is not complete a few seconds after the deadline.
using CopyMessage = std::function<void(void* to, const void* from, int64_t bytes)>;

/// The messages that one rank sends and receives in an exchange.
struct Messages {
  std::span<const SendTo> sends;
  std::span<const ReceiveFrom> receives;
};

/// Communication between ranks. In an exchange, each ordered pair of ranks has at most one message.
/// Both ranks must pass the same size, and both must omit empty messages. Two ranks that take part
/// in the same exchanges must enqueue them in the same order. Every wait ends with the data, with
/// TIMEOUT, or with the error that a peer has published with abort(). Threads: only one thread may
/// enqueue; abort() may be called from any thread.
class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string describe() const = 0;
  /// Returns the kind of stream that the operations must be enqueued on.
  virtual StreamKind stream_kind() const = 0;
  /// Returns whether the operations can run on streams of this device and access its memory.
  virtual bool serves(const Device& device) const { return device.host_reaches_memory(); }
  /// Returns the maximum number of SMs that one operation occupies, or 0 if no operation launches
  /// kernels that wait for other ranks.
  virtual int occupied_sms() const { return 0; }

  /// Exchanges messages of any size between all ranks (MPI_Alltoallv). The spans must stay valid
  /// until the exchange has run.
  virtual void exchange(Stream& stream, std::span<const SendTo> sends,
                        std::span<const ReceiveFrom> receives) = 0;
  /// out <- element-wise maximum of f32 values over all ranks. An element of `out` is NaN if the
  /// corresponding element is NaN on any rank.
  virtual void reduce_max(Stream& stream, const float* in, float* out, int64_t n) = 0;
  /// out <- element-wise sum over all ranks.
  virtual void reduce_sum(Stream& stream, const int64_t* in, int64_t* out, int64_t n) = 0;

  /// Enqueue this operation before reduce_sum() and after work that sets *entered to 1. If abort()
  /// is called before the operation runs, the operation sets *entered to 0, and this rank
  /// contributes zeros to the next reduce_sum(). Therefore, if a host thread calls abort() and then
  /// reads 0 from *entered, this rank is certain to contribute zeros or nothing. `entered` must be
  /// in memory that the host can access.
  virtual void clear_if_aborted(Stream&, int64_t* /*entered*/) {}

  /// Allocates the memory for an exchange with these messages, or for a reduction of this number of
  /// bytes. Sends nothing. Called when an optimizer is created, so that no step has to allocate.
  virtual void prepare_exchange(const Messages&) {}
  virtual void prepare_reduction(int64_t) {}
  /// Enqueues work that connects this rank to its peers in all prepared exchanges and reductions,
  /// so that no step waits for connections. Called once, when an optimizer is created. All ranks
  /// must have prepared reductions of the same sizes. Collective.
  virtual void connect(Stream&) {}

  /// Gathers `bytes` bytes of host memory from every rank into `all`, in rank order. Blocks.
  /// Collective.
  virtual void allgather(const void* mine, void* all, int64_t bytes) = 0;
  /// Returns a new, independent communicator over the same ranks. Collective.
  virtual std::unique_ptr<Comm> duplicate() = 0;

  /// Sets the timeout of all later waits. Errors: INVALID_ARGUMENT if `ms` is not positive.
  virtual void set_timeout_ms(int64_t ms) = 0;

  /// Publishes an error. Pending and later operations of every rank return this error. May be
  /// called from any thread.
  virtual void abort(Status status, const std::string& message) noexcept = 0;
  /// Returns the error of enqueued operations if their stream does not report it. A GPU stream
  /// continues after an aborted operation. The contents of the operation's buffers are then
  /// undefined, except that an aborted reduction leaves its output unchanged.
  virtual std::optional<Error> error() const { return std::nullopt; }

  /// Returns the number of bytes that this rank has sent to other ranks in exchanges so far.
  virtual int64_t bytes_sent() const = 0;
  virtual int64_t exchanges() const = 0;
};

}  // namespace muonrt
