#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/comm.hpp"
#include "base/deadline.hpp"
#include "base/error.hpp"
#include "comm/duplicate_registry.hpp"
#include "comm/flight_recorder.hpp"
#include "comm/operation.hpp"

namespace muonrt {

/// Exchanges host memory between ranks. Runs one operation at a time and blocks until the operation
/// is complete.
///
/// A wait ends when the data has arrived. After `timeout_ms`, it ends with TIMEOUT; the message
/// names the operation, this rank and the missing peers. If any rank has published an error, the
/// wait ends with this error. A rank keeps its first error, publishes it to its peers, and throws
/// it in every later operation.
/// Threads: operations from one thread at a time; abort() and error() from any thread.
/// Order: any two ranks must run the operations that they share in the same order.
///
/// An implementation provides the `do_` functions, which throw Error. Before this class calls a
/// `do_` function, it checks the arguments and delivers the message that the rank sends to itself.
/// If nothing remains to be done, it skips the call.
class Transport {
 public:
  static constexpr int64_t kDefaultTimeoutMs = 600'000;

  Transport(int rank, int size);
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Returns the name of the transport, for example "thread". It is the same on every rank.
  virtual std::string name() const = 0;
  /// Returns whether operations must run on a thread of the caller that is inside a library call.
  virtual bool caller_thread_only() const { return false; }

  /// Exchanges messages of any size between all ranks; see Comm::exchange(). Errors:
  /// INVALID_ARGUMENT if a peer is invalid, a message is empty, or there are two messages from one
  /// rank to another; MISMATCH if sender and receiver pass different sizes; COMM, TIMEOUT, ABORTED.
  /// @param copy  Copies each message, which may then be in memory that the host cannot read. If
  ///     null, the messages are in host memory. Must be null unless receivers_copy() returns true.
  void exchange(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives,
                const CopyMessage* copy = nullptr);
  /// Returns true if all ranks are in one process and each receiver copies its messages directly
  /// from the sender's buffer.
  virtual bool receivers_copy() const { return false; }
  /// Gathers `bytes` bytes from every rank into `all`, in rank order. The buffers must not overlap.
  void allgather(const void* mine, void* all, int64_t bytes);
  /// Writes the element-wise maximum over all ranks to `out`. NaN counts as larger than every
  /// number and becomes 0x7fc00000, and +0 counts as larger than -0. `in` and `out` may be the same
  /// array.
  void reduce_max(const float* in, float* out, int64_t n);
  /// Writes the element-wise sum over all ranks, modulo 2^64, to `out`. `in` and `out` may be the
  /// same array.
  void reduce_sum(const int64_t* in, int64_t* out, int64_t n);
  /// Allocates the memory for reductions of up to `bytes` bytes, so that the reductions do not
  /// allocate.
  virtual void prepare_reduction(int64_t bytes);
  /// Creates an independent transport over the same ranks and with the same timeout. Collective.
  std::unique_ptr<Transport> duplicate();

  /// Publishes an error, unless there already is an error. May be called from any thread.
  void abort(const Error& error) noexcept;
  void abort(Status status, const std::string& message) noexcept;
  /// Like abort(), but also aborts all direct and indirect duplicates that this rank has created or
  /// will create.
  void abort_with_duplicates(Status status, const std::string& message) noexcept;
  /// Returns the first error, which all later operations throw, or nullopt.
  std::optional<Error> error() const;
  /// Returns the error that a peer has published, if the transport can detect it. Also works
  /// between operations. May be called from any thread.
  virtual std::optional<Error> published_error() const { return std::nullopt; }

  int64_t timeout_ms() const { return timeout_ms_.load(std::memory_order_relaxed); }
  /// Sets the timeout of later operations. Errors: INVALID_ARGUMENT if `ms` is below 1 or above
  /// kMaxTimeoutMs (366 days). May be called from any thread.
  void set_timeout_ms(int64_t ms);

 protected:
  virtual void do_exchange(std::span<const SendTo> sends,
                           std::span<const ReceiveFrom> receives) = 0;
  virtual void do_allgather(const void* mine, void* all, int64_t bytes) = 0;
  /// The default implementations gather the values with do_allgather() and reduce them in rank
  /// order.
  virtual void do_reduce_max(const float* in, float* out, int64_t n);
  virtual void do_reduce_sum(const int64_t* in, int64_t* out, int64_t n);
  virtual std::unique_ptr<Transport> do_duplicate() = 0;
  /// Sends the error to the peers, and wakes up an operation of this rank that is waiting. Must not
  /// block. May be called from any thread. Called once for an error; if caller_thread_only()
  /// returns true, the next operation after an abort calls it again.
  virtual void publish(const Error& error) noexcept = 0;

  /// Waits until all ranks have created their ends of a duplicate. Implementations of
  /// do_duplicate() must call this function last. If the wait fails, peers may already be using the
  /// duplicate, so the error is also published on `duplicate`.
  void confirm_duplicate(Transport& duplicate);
  /// Removes this transport from the duplicates that an abort of the original reaches. The
  /// destructor of every implementation must call this function first.
  void retire() noexcept { registration_.leave(); }

  /// The running operation.
  const Operation& operation() const { return operation_; }
  /// Returns a description of the running operation, for example "exchange #12 on rank 1 (thread)".
  std::string where() const;
  /// Errors: INVALID_ARGUMENT if `count` values of `each` bytes from all ranks occupy more than
  /// 2^63 - 1 bytes in total.
  void require_fit(const char* what, int64_t count, int64_t each) const;
  /// The function that copies the messages of the running exchange. Null means memcpy.
  const CopyMessage* copy() const { return copy_; }

 private:
  template <class Body>
  void run(OperationKind kind, const Traffic& traffic, Body body);
  bool keep(const Error& error);
  [[noreturn]] void fail();
  void check_and_copy_own(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives);

  const int rank_, size_;
  std::atomic<int64_t> timeout_ms_ = kDefaultTimeoutMs;

  Operation operation_;
  const CopyMessage* copy_ = nullptr;
  int64_t operations_ = 0;
  std::array<int64_t, kOperationKinds> operations_of_kind_{};
  FlightRecorder flight_recorder_;

  // For each peer: 1 + the sequence number of the last exchange with a message to it (sent_) or
  // from it (received_).
  std::vector<int64_t> sent_, received_;
  std::vector<std::byte> gathered_;  // the input of all ranks in a default reduction

  const std::shared_ptr<DuplicateRegistry> duplicates_ = std::make_shared<DuplicateRegistry>();
  DuplicateRegistration registration_;  // registers this transport with the original

  /// True if the next operation must call publish() again, because the thread that called abort()
  /// may not have been able to reach the peers.
  std::atomic<bool> aborted_from_other_thread_ = false;
  mutable std::mutex error_mutex_;
  std::optional<Error> error_;
};

/// Runs an operation of a transport. Converts its error with Error::as_comm_error(), because the
/// error has made the transport unusable.
template <class Function>
void with_comm_error(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    throw error.as_comm_error();
  }
}

/// Returns text such as "rank 3" or "ranks 0, 2, 5". Names at most eight ranks, for example
/// "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more".
std::string name_ranks(const std::vector<int32_t>& ranks);

}  // namespace muonrt
