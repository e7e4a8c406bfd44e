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
      operating_thread_(std::this_thread::get_id()) {
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
    message_.status = static_cast<int32_t>(error.status());
    message_.rank = error.rank();
    const size_t length = std::min(error.message().size(), sizeof message_.text - 1);
    std::memcpy(message_.text, error.what(), length);
    message_.text[length] = 0;
    unsent_ = true;
  }
  if (unsent_ && may_call_mpi()) send();
}

bool ErrorChannel::may_call_mpi() const {
  int finalized = 0;
  MPI_Finalized(&finalized);  // after MPI_Finalize, other MPI calls would abort the job
  return !finalized && (any_thread_ || operating_thread_.load() == std::this_thread::get_id());
}

/// The caller must hold the mutex. A peer that the message does not reach returns TIMEOUT when its
/// own timeout has passed.
void ErrorChannel::send() noexcept {
  unsent_ = false;
  for (int step = 1; step < size_; ++step) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int peer = (rank_ + step) % size_;
    if (MPI_Isend(&message_, sizeof message_, MPI_BYTE, peer, kTag, comm_, &request) ==
        MPI_SUCCESS) {
      requests_.push_back(request);
    }
  }
}

/// Receives one message, if one has arrived. Two threads that poll at the same time receive
/// different messages.
void ErrorChannel::receive() {
  int arrived = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  MUONRT_MPI(MPI_Improbe(MPI_ANY_SOURCE, kTag, comm_, &arrived, &message, &status));
  if (!arrived) return;
  ErrorMessage received{};
  MUONRT_MPI(MPI_Mrecv(&received, sizeof received, MPI_BYTE, &message, MPI_STATUS_IGNORE));
  received.text[sizeof received.text - 1] = 0;
  const std::lock_guard lock(mutex_);
  if (!error_) {
    const int32_t rank = received.rank >= 0 && received.rank < size_ ? received.rank : -1;
    keep(Error(status_of_peer(received.status), received.text, rank)
             .reported_by_rank(status.MPI_SOURCE));
  }
}

std::optional<Error> ErrorChannel::poll() {
  if (!failed() && may_call_mpi()) receive();
  const std::lock_guard lock(mutex_);
  return error_;
}

void ErrorChannel::throw_if_failed() {
  operating_thread_.store(std::this_thread::get_id());
  if (!failed()) receive();
  if (!failed()) return;
  const std::lock_guard lock(mutex_);
  if (unsent_) send();
  throw Error(*error_);
}

void ErrorChannel::throw_if_failed_before(int64_t messages) {
  // In Open MPI, MPI_Iprobe first searches the messages that it has already read, and then reads
  // more. It therefore reports new messages only at the next probe. In Open MPI 4.1.4, each probe
  // reads about 32 messages.
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
