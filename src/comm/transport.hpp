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
/// Every wait ends with the data, with TIMEOUT after `timeout_ms` (the message names the operation,
/// this rank and the missing peers), or with the error that a rank has published. A rank keeps its
/// first error, publishes it to its peers, and returns it from every later operation.
/// Threads: operations from one thread at a time; `abort` and `error` from any thread.
/// Order: two ranks run the operations that they share in the same order.
///
/// An implementation supplies the `do_` functions, which throw Error. Before this class calls one
/// of them it checks the arguments and delivers the message that the rank sends to itself. It does
/// not call them if there is nothing to do.
class Transport {
 public:
  static constexpr int64_t kDefaultTimeoutMs = 600'000;

  Transport(int rank, int size);
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Name of the transport, for example "thread"; the same on every rank.
  virtual std::string name() const = 0;
  /// True if operations must run on a thread that is inside a call of the library's user.
  virtual bool caller_thread_only() const { return false; }

  /// All-to-all-v; see Comm. Errors: INVALID_ARGUMENT for an invalid peer, a second message of a
  /// pair, or a message without bytes; MISMATCH if the sizes of a pair differ; COMM, TIMEOUT,
  /// ABORTED.
  /// @param copy  copies each message; then the messages may be in memory that the host cannot
  ///     read. Null: the messages are in host memory. INTERNAL unless receivers_copy() is true.
  void exchange(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives,
                const CopyMessage* copy = nullptr);
  /// True if each receiver copies its messages directly from the sender's buffer, so that all ranks
  /// are in one process.
  virtual bool receivers_copy() const { return false; }
  /// Writes the `bytes` bytes at `mine` of every rank to `all`, in rank order. The buffers must not
  /// overlap.
  void allgather(const void* mine, void* all, int64_t bytes);
  /// Writes the maximum over all ranks to `out`. NaN is larger than every number and becomes
  /// 0x7fc00000; +0 is larger than -0. `in` may be `out`.
  void reduce_max(const float* in, float* out, int64_t n);
  /// Writes the sum over all ranks, modulo 2^64, to `out`. `in` may be `out`.
  void reduce_sum(const int64_t* in, int64_t* out, int64_t n);
  /// Allocates what reductions of up to `bytes` bytes need, so that they do not allocate.
  virtual void prepare_reduction(int64_t bytes);
  /// Creates an independent transport over the same ranks, with the same timeout. Collective.
  std::unique_ptr<Transport> duplicate();

  /// Publishes an error unless there is one already. Any thread.
  void abort(const Error& error) noexcept;
  void abort(Status status, const std::string& message) noexcept;
  /// Also aborts all duplicates that this rank has created or will create, and their duplicates.
  void abort_with_duplicates(Status status, const std::string& message) noexcept;
  /// Returns the first error, which all operations return from then on, if there is one.
  std::optional<Error> error() const;
  /// Returns the error that a peer has published, also between operations, if the transport can
  /// detect it. Any thread.
  virtual std::optional<Error> published_error() const { return std::nullopt; }

  int64_t timeout_ms() const { return timeout_ms_.load(std::memory_order_relaxed); }
  /// Sets the timeout of later operations. Errors: INVALID_ARGUMENT unless 1 <= ms <= 366 days. Any
  /// thread.
  void set_timeout_ms(int64_t ms);

 protected:
  virtual void do_exchange(std::span<const SendTo> sends,
                           std::span<const ReceiveFrom> receives) = 0;
  virtual void do_allgather(const void* mine, void* all, int64_t bytes) = 0;
  /// The default implementations gather the values with do_allgather and reduce them in rank order.
  virtual void do_reduce_max(const float* in, float* out, int64_t n);
  virtual void do_reduce_sum(const int64_t* in, int64_t* out, int64_t n);
  virtual std::unique_ptr<Transport> do_duplicate() = 0;
  /// Reports the error to the peers, and wakes up an operation of this rank that is waiting. Must
  /// not block. Any thread. It is called once; if caller_thread_only() is true, the next operation
  /// after an abort calls it again.
  virtual void publish(const Error& error) noexcept = 0;

  /// Waits until all ranks have created their ends of a duplicate. For do_duplicate: if the wait
  /// fails, peers may already use `duplicate`, so the error is published on it.
  void confirm_duplicate(Transport& duplicate);
  /// Ends aborts from the original. The destructor of every implementation calls it first.
  void retire() noexcept { registration_.leave(); }

  /// The running operation.
  const Operation& operation() const { return operation_; }
  /// Describes the running operation: "exchange #12 on rank 1 (thread)".
  std::string where() const;
  /// Errors: INVALID_ARGUMENT if `count` values of `each` bytes of all ranks exceed 63 bits.
  void require_fit(const char* what, int64_t count, int64_t each) const;
  /// Copies the messages of the running exchange. Null: use memcpy.
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

  // By peer: 1 + sequence number of the last exchange with a message for it, or from it.
  std::vector<int64_t> sent_, received_;
  std::vector<std::byte> gathered_;  // input of the default reductions, from all ranks

  const std::shared_ptr<DuplicateRegistry> duplicates_ = std::make_shared<DuplicateRegistry>();
  DuplicateRegistration registration_;  // in the registry of the original

  /// True if `publish` must be called again by the next operation, because the abort may have come
  /// from a thread whose calls cannot reach the peers.
  std::atomic<bool> aborted_from_other_thread_ = false;
  mutable std::mutex error_mutex_;
  std::optional<Error> error_;
};

/// Runs an operation of a transport. Converts its error with Error::as_comm_error, because the
/// error has ended the transport.
template <class Function>
void with_comm_error(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    throw error.as_comm_error();
  }
}

/// "rank 3" or "ranks 0, 2, 5". Names at most eight ranks: "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4
/// more".
std::string name_ranks(const std::vector<int32_t>& ranks);

}  // namespace muonrt
