#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.hpp"
#include "base/error.hpp"

namespace muonrt::mpi {

/// Carries the first error of any rank to all others, beside the data: a small message with a tag
/// of its own, looked for wherever a rank waits. Where other threads must not call MPI, an error
/// that such a thread posts leaves with the next look, or post, of the one that may.
class ErrorChannel {
 public:
  /// @param comm  returns errors; the tag kTag on it belongs to the box.
  ErrorChannel(MPI_Comm comm, int rank, int size, bool any_thread_calls_mpi);

  /// From now on every look throws it, here and on the peers; the first one counts. Any thread.
  void publish(const Error& error) noexcept;

  /// Throws the error if there is one. Only the thread that carries out operations.
  void throw_if_failed();

  /// The same before an operation: who comes late finds an error before it takes the messages that
  /// came with it.
  /// @param messages  about as many may have come
  void throw_if_failed_before(int64_t messages);

  /// The error, if there is one by now. Any thread; where only some may call MPI, others than the
  /// one that made the box or carried out its last operation see no more than what was met before,
  /// as do all after MPI_Finalize.
  std::optional<Error> poll();

  bool failed() const { return failed_.load(std::memory_order_acquire); }

  /// Completes what was sent; false if it could not be by the deadline: then the box must be kept.
  bool close(Deadline deadline);

  static constexpr int kTag = 1;

 private:
  struct ErrorMessage {
    int32_t status, rank;  // -1: the sender's
    char text[1016];
  };
  void keep(Error error);
  bool may_call_mpi() const;
  void send() noexcept;
  void receive();

  const MPI_Comm comm_;
  const int rank_, size_;
  const bool any_thread_;
  std::atomic<std::thread::id> operator_;  // the thread whose MPI calls are in order
  std::mutex mutex_;
  std::optional<Error> error_;
  bool unsent_ = false;
  std::atomic<bool> failed_ = false;
  ErrorMessage letter_{};
  std::vector<MPI_Request> requests_;
};

}  // namespace muonrt::mpi
