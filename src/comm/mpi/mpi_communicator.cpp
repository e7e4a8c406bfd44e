#include "comm/mpi/mpi_communicator.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>

#include "backend/comm.hpp"
#include "base/float_order.hpp"
#include "base/text.hpp"
#include "comm/mpi/mpi_check.hpp"

namespace muonrt::mpi {

namespace {

constexpr int64_t kCloseMs = 200;
// Maximum number of bytes of one part of a collective, in total over all ranks.
constexpr int64_t kMaxCollectiveBytes = int64_t{16} << 20;

}  // namespace

Communicator::Communicator(MPI_Comm comm, int64_t fragment_bytes)
    : comm_(comm), fragment_bytes_(fragment_bytes) {
  MUONRT_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  MUONRT_MPI(MPI_Comm_rank(comm_, &rank_));
  MUONRT_MPI(MPI_Comm_size(comm_, &size_));
  int level = MPI_THREAD_SINGLE;
  MUONRT_MPI(MPI_Query_thread(&level));
  caller_thread_only_ = level < MPI_THREAD_MULTIPLE;
  error_channel_ = std::make_unique<ErrorChannel>(comm_, rank_, size_, !caller_thread_only_);
  const auto few = static_cast<size_t>(2 * size_);  // enough if each message is one fragment
  fragments_.reserve(few);
  requests_.reserve(few);
  statuses_.resize(few);
  completed_.resize(few);
  // These buffers are allocated now, so that neither a vote nor the exchange of its explanation
  // allocates.
  in_.resize(kExplanationBytes);
  out_.resize(static_cast<size_t>(std::min(kMaxCollectiveBytes, kExplanationBytes * size_)));
}

std::unique_ptr<Communicator> Communicator::over(MPI_Comm parent, int64_t fragment_bytes,
                                                 Deadline deadline) {
  // The handle is on the heap, because MPI writes it when all peers have called the function,
  // possibly after the deadline.
  auto handle = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  MUONRT_MPI(MPI_Comm_idup(parent, handle.get(), &request));
  Backoff pauses = backoff();
  for (int done = 0; !done; pauses.pause()) {
    MUONRT_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done || !deadline.passed()) continue;
    handle.release();
    throw make_error(Status::kTimeout,
                     "MPI communicator: it was not duplicated before the timeout; call "
                     "muonrt_comm_create_mpi() on every rank of the communicator, or raise "
                     "timeout_ms");
  }
  return std::unique_ptr<Communicator>(new Communicator(*handle, fragment_bytes));
}

std::unique_ptr<Communicator> Communicator::duplicate(Deadline deadline) {
  std::unique_ptr<Communicator> out;
  run("duplicate", size_, [&] {
    // MPI_Comm_idup cannot be cancelled. The ranks therefore first wait for each other in a
    // reduction, which can return a published error.
    const int64_t mine = 0;
    int64_t sum = 0;
    in_.resize(std::max(in_.size(), sizeof mine));
    out_.resize(std::max(out_.size(), sizeof sum));
    std::memcpy(in_.data(), &mine, sizeof mine);
    MPI_Request request = MPI_REQUEST_NULL;
    MUONRT_MPI(MPI_Iallreduce(in_.data(), out_.data(), 1, MPI_INT64_T, MPI_SUM, comm_, &request));
    finish(request, deadline);
    out = over(comm_, fragment_bytes_, deadline);
  });
  return out;
}

void Communicator::destroy(std::unique_ptr<Communicator> communicator) noexcept {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) return;
  const bool sent = communicator->error_channel_->close(Deadline::in_ms(kCloseMs));
  if (!sent || communicator->abandoned_) {
    (void)communicator.release();
  } else if (!communicator->error_channel_->failed()) {
    MPI_Comm comm = communicator->comm_;
    MPI_Comm_free(&comm);
  }
  // After an error, the communicator is not freed: MPI_Comm_free is collective, and a peer may not
  // call it.
}

void Communicator::finish(MPI_Request& request, Deadline deadline) {
  Backoff pauses = backoff();
  int done = 0;
  abandoned_ = true;  // stays true if the loop throws, because a collective cannot be cancelled
  while (true) {
    MUONRT_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done) break;
    error_channel_->throw_if_failed();
    MUONRT_REQUIRE(!deadline.passed(), Status::kTimeout,
                   "a rank did not take part before the timeout; check whether all ranks are still "
                   "running, or raise the timeout with muonrt_comm_set_timeout()");
    pauses.pause();
  }
  abandoned_ = false;
}

void Communicator::allgather(const void* mine, void* all, int64_t bytes, Deadline deadline) {
  run("allgather", size_, [&] {
    const int64_t most = std::clamp<int64_t>(kMaxCollectiveBytes / size_, 1, fragment_bytes_);
    for (int64_t begin = 0; begin < bytes; begin += most) {
      const auto part = static_cast<size_t>(std::min(most, bytes - begin));
      in_.resize(std::max(in_.size(), part));
      out_.resize(std::max(out_.size(), part * static_cast<size_t>(size_)));
      std::memcpy(in_.data(), static_cast<const char*>(mine) + begin, part);
      const int count = static_cast<int>(part);
      MPI_Request request = MPI_REQUEST_NULL;
      MUONRT_MPI(MPI_Iallgather(in_.data(), count, MPI_BYTE, out_.data(), count, MPI_BYTE, comm_,
                                &request));
      finish(request, deadline);
      for (int64_t r = 0; r < size_; ++r) {
        std::memcpy(static_cast<char*>(all) + r * bytes + begin,
                    out_.data() + static_cast<size_t>(r) * part, part);
      }
    }
  });
}

void Communicator::reduce_max(const float* in, float* out, int64_t n, Deadline deadline) {
  run("reduce_max", size_, [&] {
    constexpr int64_t kMost = kMaxCollectiveBytes / int64_t{sizeof(int32_t)};
    for (int64_t begin = 0; begin < n; begin += kMost) {
      const int64_t count = std::min(kMost, n - begin);
      const size_t bytes = static_cast<size_t>(count) * sizeof(int32_t);
      in_.resize(std::max(in_.size(), bytes));
      out_.resize(std::max(out_.size(), bytes));
      auto* const keys = reinterpret_cast<int32_t*>(in_.data());
      for (int64_t i = 0; i < count; ++i) keys[i] = ordered_from_f32(in[begin + i]);
      MPI_Request request = MPI_REQUEST_NULL;
      MUONRT_MPI(MPI_Iallreduce(in_.data(), out_.data(), static_cast<int>(count), MPI_INT32_T,
                                MPI_MAX, comm_, &request));
      finish(request, deadline);
      const auto* const best = reinterpret_cast<const int32_t*>(out_.data());
      for (int64_t i = 0; i < count; ++i) out[begin + i] = f32_from_ordered(best[i]);
    }
  });
}

void Communicator::reduce_sum(const int64_t* in, int64_t* out, int64_t n, Deadline deadline) {
  run("reduce_sum", size_, [&] {
    constexpr int64_t kMost = kMaxCollectiveBytes / int64_t{sizeof(int64_t)};
    for (int64_t begin = 0; begin < n; begin += kMost) {
      const int64_t count = std::min(kMost, n - begin);
      const size_t bytes = static_cast<size_t>(count) * sizeof(int64_t);
      in_.resize(std::max(in_.size(), bytes));
      out_.resize(std::max(out_.size(), bytes));
      std::memcpy(in_.data(), in + begin, bytes);
      MPI_Request request = MPI_REQUEST_NULL;
      MUONRT_MPI(MPI_Iallreduce(in_.data(), out_.data(), static_cast<int>(count), MPI_INT64_T,
                                MPI_SUM, comm_, &request));
      finish(request, deadline);
      std::memcpy(out + begin, out_.data(), bytes);
    }
  });
}

}  // namespace muonrt::mpi
