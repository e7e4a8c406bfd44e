#pragma once

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/backoff.hpp"
#include "base/deadline.hpp"
#include "comm/mpi/mpi_error_channel.hpp"
#include "muonrt/transport.h"

namespace muonrt::mpi {

inline Backoff backoff() {
  using std::chrono::microseconds;
  return Backoff(microseconds(20), microseconds(20), microseconds(50));
}

/// A duplicate of an MPI communicator, and the operations on it. No operation blocks inside MPI:
/// each operation starts non-blocking MPI operations and polls them, its deadline and the error
/// channel. Before an operation throws an error, it publishes the error to the peers.
/// Threads: one operation at a time. If MPI does not provide MPI_THREAD_MULTIPLE, operations must
/// run on a thread that may call MPI. publish() may be called from any thread.
class Communicator {
 public:
  /// Duplicates `parent` without changing its error handler. Collective over `parent`.
  /// @param fragment_bytes  the maximum size of one MPI message; must be > 0.
  static std::unique_ptr<Communicator> over(MPI_Comm parent, int64_t fragment_bytes,
                                            Deadline deadline);
  /// Frees the communicator. If MPI may still access its memory after an error, the communicator is
  /// kept until the process exits.
  static void destroy(std::unique_ptr<Communicator> communicator) noexcept;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool caller_thread_only() const { return caller_thread_only_; }

  void exchange(std::span<const muonrt_send_t> sends, std::span<const muonrt_receive_t> receives,
                Deadline deadline);
  void allgather(const void* mine, void* all, int64_t bytes, Deadline deadline);
  void reduce_max(const float* in, float* out, int64_t n, Deadline deadline);
  void reduce_sum(const int64_t* in, int64_t* out, int64_t n, Deadline deadline);
  std::unique_ptr<Communicator> duplicate(Deadline deadline);

  void publish(const Error& error) noexcept { error_channel_->publish(error); }
  /// Returns the error that a rank has published, or nullopt. May be called from any thread.
  std::optional<Error> published_error() { return error_channel_->poll(); }

 private:
  Communicator(MPI_Comm comm, int64_t fragment_bytes);

  /// Calls `body`. If it throws, publishes the error with the name of the operation.
  /// @param messages  an estimate of how many messages may already have arrived at this rank.
  template <class Body>
  void run(const char* operation, int64_t messages, Body body) {
    try {
      error_channel_->throw_if_failed_before(messages);
      body();
    } catch (...) {
      fail(operation);
    }
  }
  [[noreturn]] void fail(const char* operation);
  /// Polls a collective operation until it is complete.
  void finish(MPI_Request& request, Deadline deadline);

  struct Fragment {
    int32_t peer;
    bool send;
    bool ended;  // for a send: true if the receiver has reported that its receives ended
    int64_t bytes;
  };
  void start_send(const muonrt_send_t& message);
  void start_receive(const muonrt_receive_t& message);
  bool test_fragments();
  void check_fragment(const Fragment& fragment, const MPI_Status& status) const;
  [[noreturn]] void throw_timeout() const;
  void give_up() noexcept;
  bool active(size_t fragment) const;
  bool any_active(bool send) const;
  bool receives_from(int32_t peer) const;
  void notify_senders() const noexcept;
  void poll_receivers() noexcept;

  const MPI_Comm comm_;
  const int64_t fragment_bytes_;
  int rank_ = 0, size_ = 1;
  bool caller_thread_only_ = false;
  std::unique_ptr<ErrorChannel> error_channel_;

  // The messages of the running exchange, with one entry for each fragment. The last two lists may
  // be longer than the first two.
  std::vector<Fragment> fragments_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<int> completed_;
  int64_t open_ = 0;  // number of requests that are not complete

  std::vector<std::byte> in_, out_;  // buffers of the running collective
  bool abandoned_ = false;           // true if a collective, a send or a receive is unfinished
};

}  // namespace muonrt::mpi
