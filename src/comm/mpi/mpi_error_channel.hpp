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

/// Sends the first error of any rank to all other ranks as a small message. The message has a
/// separate tag, for which every waiting rank polls. If the thread that publishes the error must
/// not call MPI, a thread that may call MPI sends the error when it next polls or publishes.
class ErrorChannel {
 public:
  /// @param comm  the error handler must be MPI_ERRORS_RETURN, and only the error channel may use
  ///     the tag kTag.
  ErrorChannel(MPI_Comm comm, int rank, int size, bool any_thread_calls_mpi);

  /// Publishes `error`, unless an error was published before. throw_if_failed() then throws it on
  /// this rank and on the peers. May be called from any thread.
  void publish(const Error& error) noexcept;

  /// Polls, and throws the error if there is one. Only the thread that runs operations may call
  /// this function.
  void throw_if_failed();

  /// Like throw_if_failed(), but for use before an operation. If a rank starts the operation late,
  /// a published error may have arrived together with messages of the operation; the rank then
  /// receives the error first.
  /// @param messages  An estimate of how many messages may have arrived.
  void throw_if_failed_before(int64_t messages);

  /// Polls, and returns the error if there is one. May be called from any thread. If only some
  /// threads may call MPI, polls only on the thread that created the error channel or ran the last
  /// operation. Does not poll after MPI_Finalize.
  std::optional<Error> poll();

  bool failed() const { return failed_.load(std::memory_order_acquire); }

  /// Waits until the errors that were sent have been delivered. Returns false if some are not
  /// delivered at the deadline; the error channel must then not be destroyed.
  bool close(Deadline deadline);

  static constexpr int kTag = 1;

 private:
  struct ErrorMessage {
    int32_t status, rank;  // a rank of -1 means the sender
    char text[1016];
  };
  void keep(Error error);
  bool may_call_mpi() const;
  void send() noexcept;
  void receive();

  const MPI_Comm comm_;
  const int rank_, size_;
  const bool any_thread_;
  std::atomic<std::thread::id> operating_thread_;  // the thread that may call MPI
  std::mutex mutex_;
  std::optional<Error> error_;
  bool unsent_ = false;
  std::atomic<bool> failed_ = false;
  ErrorMessage message_{};
  std::vector<MPI_Request> requests_;
};

}  // namespace muonrt::mpi
