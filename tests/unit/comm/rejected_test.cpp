// Tests a system that cannot start another thread, or that runs out of memory while it is resolving
// a name. To simulate these errors, the program replaces functions of the C library. The tests do
// not run under sanitizers, because sanitizers replace the same functions.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <dlfcn.h>
#include <netdb.h>
#include <pthread.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <tuple>

#include "comm/tcp/socket.hpp"
#include "muonrt/rendezvous.h"
#include "support/one_matrix.hpp"
#include "support/tcp_ranks.hpp"

using namespace muonrt;
using namespace transport_test;

namespace {

std::atomic<int> threads_left = 1 << 30;  // number of threads that marked threads may start
thread_local bool marked = false;
std::atomic<int> name_error = 0, name_errno = 0;  // the result of getaddrinfo, and errno

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// These functions are exported, so that calls from other libraries also use them.
#define MUONRT_EXPORTED __attribute__((visibility("default")))

extern "C" MUONRT_EXPORTED int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                              void* (*body)(void*), void* argument) {
  if (marked && threads_left.fetch_sub(1) <= 0) return EAGAIN;
  return next<decltype(pthread_create)>("pthread_create")(thread, attributes, body, argument);
}

extern "C" MUONRT_EXPORTED int getaddrinfo(const char* name, const char* service,
                                           const addrinfo* hints, addrinfo** result) {
  errno = name_errno;
  if (name_error != 0) return name_error;
  return next<decltype(getaddrinfo)>("getaddrinfo")(name, service, hints, result);
}

TEST_CASE("rejected thread: creating an optimizer fails on every rank", "[unit][optimizer][abi]") {
  for (int faulty = 0; faulty < 2; ++faulty) {
    int failed = 0;
    for (bool rejected = true; rejected; failed += rejected) {
      muonrt_thread_group_t* group = nullptr;
      muonrt_thread_group_create(&group, 2);
      muonrt_comm_t* comms[2];
      for (int rank = 0; rank < 2; ++rank) muonrt_comm_create_thread(&comms[rank], group, rank);
      muonrt_thread_group_destroy(group);
      threads_left = failed;
      const auto errors = on_ranks(2, [&](int rank) {
        muonrt_comm_set_timeout(comms[rank], 20'000);
        marked = rank == faulty;
        muonrt_optimizer_options_t options;
        muonrt_optimizer_options_init(&options);
        options.threads = 3;
        OneMatrix trainer;
        const auto status = static_cast<Status>(trainer.create(comms[rank], &options));
        marked = false;
        if (status != Status::kOk) throw Error(status, muonrt_get_last_error());
      });
      for (muonrt_comm_t* comm : comms) muonrt_comm_destroy(comm);
      rejected = threads_left < 0;
      CAPTURE(faulty, failed, text_of(errors));
      for (const auto& error : errors)
        CHECK((rejected ? is_error(error, Status::kOutOfMemory, "thread") : !error));
    }
    CHECK(failed >= 4);  // two threads of the thread pool, and two streams
  }
}

TEST_CASE("rejected thread: the creation of a connection is out of memory", "[unit][tcp]") {
  auto connections = tcp_connections(3);  // with three ranks, rank 0 needs a thread
  threads_left = 0;
  const auto outcome = error_of([&] {
    marked = true;
    make_tcp_transport(std::move(connections[0]));
  });
  CHECK(is_error(outcome, Status::kOutOfMemory, "cannot start a thread for"));
  const auto other = make_tcp_transport(std::move(connections[1]));
  CHECK(is_error(receive_error(*other, 0), Status::kComm, ""));
}

TEST_CASE("resolving a name: an error without memory does not blame the name", "[unit][tcp]") {
  for (const auto& [result, code, status] : {std::tuple{EAI_MEMORY, 0, Status::kOutOfMemory},
                                             {EAI_SYSTEM, ENOMEM, Status::kOutOfMemory},
                                             {EAI_SYSTEM, EMFILE, Status::kComm},
                                             {EAI_AGAIN, 0, Status::kComm}}) {
    CAPTURE(result, code);
    name_error = result;
    name_errno = code;
    const auto error = error_of([] { resolve("localhost:80"); });
    name_error = name_errno = 0;
    CHECK(is_error(error, status, ""));
  }
  CHECK(!resolve("localhost:80").empty());
}

#endif
