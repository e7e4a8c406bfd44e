#include "comm/mpi/mpi_error_channel.hpp"

#include <algorithm>
#include <cstring>

#include "base/peer_status.hpp"
#include "base/text.hpp"
#include "comm/mpi/mpi_check.hpp"

namespace muonrt::mpi {

ErrorChannel::ErrorChannel(MPI_Comm comm, int rank, int size, bool any_thread_calls_mpi)
    : comm_(comm),
      rank_(rank),
      size_(size),
      any_thread_(any_thread_calls_mpi),
      operator_(std::this_thread::get_id()) {
  requests_.reserve(static_cast<size_t>(size));
}

void ErrorChannel::keep(Error error) {
  error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
}

void ErrorChannel::publish(const Error& error) noexcept {
  const std::lock_guard lock(mutex_);
  if (!error_) {
    try {
      keep(error);
    } catch (...) {
      keep(Error(error.status(), std::string(), error.rank(), error.is_remote()));
    }
    letter_.status = static_cast<int32_t>(error.status());
    letter_.rank = error.rank();
    const size_t length = std::min(error.message().size(), sizeof letter_.text - 1);
    std::memcpy(letter_.text, error.what(), length);
    letter_.text[length] = 0;
    unsent_ = true;
  }
  if (unsent_ && may_call_mpi()) send();
}

bool ErrorChannel::may_call_mpi() const {
  int finalized = 0;
  MPI_Finalized(&finalized);  // after which every other call ends the job
  return !finalized && (any_thread_ || operator_.load() == std::this_thread::get_id());
}

/// With the mutex held. A send that fails is left out: that peer has its deadline.
void ErrorChannel::send() noexcept {
  unsent_ = false;
  for (int step = 1; step < size_; ++step) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int peer = (rank_ + step) % size_;
    if (MPI_Isend(&letter_, sizeof letter_, MPI_BYTE, peer, kTag, comm_, &request) == MPI_SUCCESS) {
      requests_.push_back(request);
    }
  }
}

/// A letter that has come. Two threads that look at the same time take a letter each.
void ErrorChannel::receive() {
  int arrived = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  MUONRT_MPI(MPI_Improbe(MPI_ANY_SOURCE, kTag, comm_, &arrived, &message, &status));
  if (!arrived) return;
  ErrorMessage letter{};
  MUONRT_MPI(MPI_Mrecv(&letter, sizeof letter, MPI_BYTE, &message, MPI_STATUS_IGNORE));
  letter.text[sizeof letter.text - 1] = 0;
  const std::lock_guard lock(mutex_);
  if (!error_) {
    const int32_t rank = letter.rank >= 0 && letter.rank < size_ ? letter.rank : -1;
    keep(Error(status_of_peer(letter.status), letter.text, rank)
             .reported_by_rank(status.MPI_SOURCE));
  }
}

std::optional<Error> ErrorChannel::poll() {
  if (!failed() && may_call_mpi()) receive();
  const std::lock_guard lock(mutex_);
  return error_;
}

void ErrorChannel::throw_if_failed() {
  operator_.store(std::this_thread::get_id());
  if (!failed()) receive();
  if (!failed()) return;
  const std::lock_guard lock(mutex_);
  if (unsent_) send();
  throw Error(*error_);
}

void ErrorChannel::throw_if_failed_before(int64_t messages) {
  // Open MPI searches among what it has read before, and then reads on. So the first look never
  // finds what has come since. Each look reads about 32 messages (measured, 4.1.4).
  for (int64_t i = 0; i < 4 + messages / 16; ++i) throw_if_failed();
}

bool ErrorChannel::close(Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (unsent_) send();
  int done = 0;
  while (true) {
    MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE);
    if (done || deadline.passed()) break;
    std::this_thread::yield();
  }
  return done;
}

}  // namespace muonrt::mpi
