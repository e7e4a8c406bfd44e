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

/// A duplicate of an MPI communicator, with errors returned, and all that goes over it. Never waits
/// inside MPI: everything is started without blocking and polled, with a deadline and a look into
/// the error box. Errors are thrown and have been posted to the peers. Threads: one operation at a
/// time; under less than MPI_THREAD_MULTIPLE on the threads that MPI allows. `post` from any
/// thread.
class Communicator {
 public:
  /// Collective over `parent`, whose error handler stays as it is.
  /// @param piece_bytes  greatest size of one MPI message, > 0.
  static std::unique_ptr<Communicator> over(MPI_Comm parent, int64_t fragment_bytes,
                                            Deadline deadline);
  /// Lets go of the channel: frees it, or leaves it to the end of the process if MPI may still
  /// touch its memory after a failure.
  static void destroy(std::unique_ptr<Communicator> channel) noexcept;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool caller_thread_only() const { return caller_thread_only_; }

  void exchange(std::span<const muonrt_message_t> sends, std::span<const muonrt_message_t> receives,
                Deadline deadline);
  void allgather(const void* mine, void* all, int64_t bytes, Deadline deadline);
  void reduce_max(const float* in, float* out, int64_t n, Deadline deadline);
  void reduce_sum(const int64_t* in, int64_t* out, int64_t n, Deadline deadline);
  std::unique_ptr<Communicator> duplicate(Deadline deadline);

  void publish(const Error& error) noexcept { box_->publish(error); }
  /// What a peer has posted, if anything. Any thread.
  std::optional<Error> published_error() { return box_->poll(); }

 private:
  Communicator(MPI_Comm comm, int64_t fragment_bytes);

  /// Runs `body`; what it throws is posted under the operation's name.
  /// @param messages  about as many may have come for this rank before
  template <class Body>
  void run(const char* operation, int64_t messages, Body body) {
    try {
      box_->throw_if_failed_before(messages);
      body();
    } catch (...) {
      fail(operation);
    }
  }
  [[noreturn]] void fail(const char* operation);
  /// Polls a collective operation to its end.
  void finish(MPI_Request& request, Deadline deadline);

  struct Fragment {
    int32_t peer;
    bool send;
    bool over;  // a send that its receiver will not read, or read no more
    int64_t bytes;
  };
  void start(const muonrt_message_t& message, bool send);
  bool test_pieces();
  void check_piece(const Fragment& piece, const MPI_Status& status) const;
  [[noreturn]] void throw_timeout() const;
  void give_up() noexcept;
  bool active(size_t piece) const;
  bool any_active(bool send) const;
  bool receives_from(int32_t peer) const;
  void notify_senders() const noexcept;
  void poll_receivers() noexcept;

  const MPI_Comm comm_;
  const int64_t piece_bytes_;
  int rank_ = 0, size_ = 1;
  bool caller_thread_only_ = false;
  std::unique_ptr<ErrorChannel> box_;

  // Of the exchange that is running; the four lists have equal lengths.
  std::vector<Fragment> pieces_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<int> completed_;
  int64_t open_ = 0;  // requests not complete yet

  std::vector<std::byte> in_, out_;  // of the collective that is running
  bool abandoned_ = false;           // a collective or a send was left unfinished
};

}  // namespace muonrt::mpi
