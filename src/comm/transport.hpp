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

/// How ranks move host memory: blocking, one operation at a time.
///
/// Every wait ends: with the data, with TIMEOUT after `timeout_ms` (the message names the
/// operation, this rank and the peers still missing), or with the error that a rank has published.
/// The first error of a rank is kept, published to the peers, and returned by all later operations.
/// Threads: operations from one thread at a time; `abort`, `error` from any.
/// Order: the operations two ranks share come in the same order on both.
///
/// An implementation supplies the `do_` functions, which throw Error; this class has checked the
/// arguments, copied what a rank sends to itself, and never calls them with nothing to do.
class Transport {
 public:
  static constexpr int64_t kDefaultTimeoutMs = 600'000;

  Transport(int rank, int size);
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// "self", "thread", "mpi": the same on every rank.
  virtual std::string name() const = 0;
  /// True if operations must run on a thread that is inside a call of the library's user.
  virtual bool caller_thread_only() const { return false; }

  /// All-to-all-v; see Comm. Errors: INVALID_ARGUMENT for a bad peer, a second message for a pair,
  /// a message without bytes; MISMATCH if a pair's sizes differ; COMM, TIMEOUT, ABORTED.
  /// @param copy  moves the messages, which may then lie in memory that the host does not reach;
  ///              null: they lie in host memory. INTERNAL unless receivers_copy.
  void exchange(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives,
                const CopyMessage* copy = nullptr);
  /// Whether every message is copied by its receiver from its sender's buffer, with nothing between
  /// the two: all ranks are of one process.
  virtual bool receivers_copy() const { return false; }
  /// all[r] <- what rank r passed as `mine`, `bytes` each. The two must not overlap.
  void allgather(const void* mine, void* all, int64_t bytes);
  /// out <- maximum over all ranks; NaN (then 0x7fc00000) over every number, +0 over -0.
  /// `in` may be `out`.
  void reduce_max(const float* in, float* out, int64_t n);
  /// out <- sum over all ranks, modulo 2^64. `in` may be `out`.
  void reduce_sum(const int64_t* in, int64_t* out, int64_t n);
  /// Reductions of up to so many bytes then take no memory of this class's.
  virtual void prepare_reduction(int64_t bytes);
  /// A transport of its own over the same ranks, with this one's timeout. Collective.
  std::unique_ptr<Transport> duplicate();

  /// Publishes an error; the first one counts. Any thread.
  void abort(const Error& error) noexcept;
  void abort(Status status, const std::string& message) noexcept;
  /// The same here and on all duplicates that this rank has taken or will take, and on theirs.
  void abort_with_duplicates(Status status, const std::string& message) noexcept;
  /// The error that all operations return from now on, if there is one.
  std::optional<Error> error() const;
  /// What a peer has published and no operation has met yet, where the transport can tell. Any
  /// thread.
  virtual std::optional<Error> published_error() const { return std::nullopt; }

  int64_t timeout_ms() const { return timeout_ms_.load(std::memory_order_relaxed); }
  /// Errors: INVALID_ARGUMENT unless 1 <= ms <= 366 days. Any thread; concerns later operations.
  void set_timeout_ms(int64_t ms);

 protected:
  virtual void do_exchange(std::span<const SendTo> sends,
                           std::span<const ReceiveFrom> receives) = 0;
  virtual void do_allgather(const void* mine, void* all, int64_t bytes) = 0;
  /// By default over do_allgather, in rank order.
  virtual void do_reduce_max(const float* in, float* out, int64_t n);
  virtual void do_reduce_sum(const int64_t* in, int64_t* out, int64_t n);
  virtual std::unique_ptr<Transport> do_duplicate() = 0;
  /// Tells the peers, and wakes an operation of this rank that is waiting. Any thread; once, and
  /// after an abort once more by the next operation where caller_thread_only. Must not block.
  virtual void publish(const Error& error) noexcept = 0;

  /// For do_duplicate: `made` is this rank's end of a duplicate that its peers may have gone on
  /// with when this rank fails here; it then ends with that error on all of them.
  void confirm_duplicate(Transport& made);
  /// Every implementation's destructor calls it first: afterwards no abort comes from outside.
  void retire() noexcept { place_.leave(); }

  /// The operation that is running.
  const Operation& operation() const { return operation_; }
  /// "exchange #12 of rank 1 (thread)".
  std::string where() const;
  /// What moves the messages of the exchange that is running; null: memcpy.
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
  FlightRecorder record_;

  std::vector<int64_t> sent_,
      received_;                     // by peer: 1 + sequence of the last exchange that named it
  std::vector<std::byte> gathered_;  // what the default reductions have gathered

  const std::shared_ptr<DuplicateRegistry> duplicates_ = std::make_shared<DuplicateRegistry>();
  DuplicateRegistration place_;  // among those of the transport that this one was duplicated from

  /// An abort came from a thread whose calls may reach nobody: the next operation's do.
  std::atomic<bool> aborted_from_other_thread_ = false;
  mutable std::mutex error_mutex_;
  std::optional<Error> error_;
};

/// Runs an operation; a transport ends with what it throws: see Error::as_comm_error.
template <class Work>
void with_comm_error(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    throw error.as_comm_error();
  }
}

/// "rank 3" or "ranks 0, 2, 5"; at most eight are named: "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more".
std::string name_ranks(const std::vector<int32_t>& ranks);

}  // namespace muonrt
