#include "comm/mpi/mpi_transport.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/mpi/mpi_check.hpp"
#include "comm/mpi/mpi_communicator.hpp"

namespace muonrt::mpi {

namespace {

Communicator& communicator(void* state) { return *static_cast<Communicator*>(state); }

/// Calls `body`, and converts the exception that it throws to a status and a message.
template <class Body>
muonrt_status_t as_status(char* message, int64_t capacity, Body body) noexcept {
  const auto write = [&](Status status, const char* text) {
    const size_t length = std::min(std::strlen(text), static_cast<size_t>(capacity) - 1);
    std::memcpy(message, text, length);
    message[length] = 0;
    return static_cast<muonrt_status_t>(status);
  };
  try {
    body();
    return MUONRT_OK;
  } catch (...) {
    const Error error = current_error();
    return write(error.status(), error.what());
  }
}

muonrt_status_t exchange(void* state, const muonrt_send_t* sends, int64_t n_sends,
                         const muonrt_receive_t* receives, int64_t n_receives, int64_t timeout_ms,
                         char* message, int64_t capacity) {
  return as_status(message, capacity, [&] {
    communicator(state).exchange({sends, static_cast<size_t>(n_sends)},
                                 {receives, static_cast<size_t>(n_receives)},
                                 Deadline::in_ms(timeout_ms));
  });
}

muonrt_status_t allgather(void* state, const void* mine, void* all, int64_t bytes,
                          int64_t timeout_ms, char* message, int64_t capacity) {
  return as_status(message, capacity, [&] {
    communicator(state).allgather(mine, all, bytes, Deadline::in_ms(timeout_ms));
  });
}

muonrt_status_t reduce_max(void* state, const float* in, float* out, int64_t n, int64_t timeout_ms,
                           char* message, int64_t capacity) {
  return as_status(message, capacity, [&] {
    communicator(state).reduce_max(in, out, n, Deadline::in_ms(timeout_ms));
  });
}

muonrt_status_t reduce_sum(void* state, const int64_t* in, int64_t* out, int64_t n,
                           int64_t timeout_ms, char* message, int64_t capacity) {
  return as_status(message, capacity, [&] {
    communicator(state).reduce_sum(in, out, n, Deadline::in_ms(timeout_ms));
  });
}

void abort_all(void* state, muonrt_status_t status, const char* message) {
  communicator(state).publish(Error(static_cast<Status>(status), message));
}

muonrt_status_t published_error(void* state, char* message, int64_t capacity) {
  return as_status(message, capacity, [&] {
    if (const auto error = communicator(state).published_error()) throw *error;
  });
}

void destroy(void* state) {
  Communicator::destroy(std::unique_ptr<Communicator>(static_cast<Communicator*>(state)));
}

muonrt_transport_t table_of(std::unique_ptr<Communicator> communicator);

muonrt_status_t duplicate(void* state, muonrt_transport_t* out, int64_t timeout_ms, char* message,
                          int64_t capacity) {
  return as_status(message, capacity, [&] {
    *out = table_of(communicator(state).duplicate(Deadline::in_ms(timeout_ms)));
  });
}

muonrt_transport_t table_of(std::unique_ptr<Communicator> communicator) {
  muonrt_transport_t table{};
  table.struct_size = sizeof table;
  table.rank = communicator->rank();
  table.size = communicator->size();
  table.caller_thread_only = communicator->caller_thread_only();
  table.name = "mpi";
  table.exchange = exchange;
  table.allgather = allgather;
  table.reduce_max = reduce_max;
  table.reduce_sum = reduce_sum;
  table.duplicate = duplicate;
  table.abort = abort_all;
  table.destroy = destroy;
  table.get_published_error = published_error;
  table.state = communicator.release();
  return table;
}

}  // namespace

muonrt_transport_t make_transport(MPI_Comm comm, int64_t timeout_ms, int64_t fragment_bytes) {
  int initialized = 0, finalized = 0, inter = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  MUONRT_REQUIRE(initialized, Status::kInvalidState,
                 "MPI communicator: MPI is not initialized; call MPI_Init_thread first");
  MUONRT_REQUIRE(!finalized, Status::kInvalidState,
                 "MPI communicator: MPI_Finalize was called; create communicators before it");
  MUONRT_REQUIRE(comm != MPI_COMM_NULL, Status::kInvalidArgument,
                 "MPI communicator: the handle is MPI_COMM_NULL; call the function only on ranks "
                 "that belong to the MPI communicator");
  MUONRT_MPI(MPI_Comm_test_inter(comm, &inter));
  MUONRT_REQUIRE(!inter, Status::kInvalidArgument,
                 "MPI communicator: the handle is an intercommunicator; merge it with "
                 "MPI_Intercomm_merge first");
  MUONRT_REQUIRE(timeout_ms > 0 && timeout_ms <= kMaxTimeoutMs, Status::kInvalidArgument,
                 "MPI communicator: timeout_ms is ", timeout_ms, "; pass 1 to ", kMaxTimeoutMs);
  MUONRT_CHECK_INTERNAL(fragment_bytes > 0 && fragment_bytes <= kMaxFragmentBytes,
                        "fragment_bytes is ", fragment_bytes);
  return table_of(Communicator::over(comm, fragment_bytes, Deadline::in_ms(timeout_ms)));
}

}  // namespace muonrt::mpi
