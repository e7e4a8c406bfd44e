// Threads that the system refuses, and names that it has no memory to look up: this program's
// functions stand before the C library's. Not under sanitizers, which have their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <dlfcn.h>
#include <netdb.h>
#include <pthread.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <string>
#include <vector>

#include "comm/tcp/addresses.hpp"
#include "muonrt/rendezvous.h"
#include "support/loopback.hpp"
#include "support/one_matrix.hpp"
#include "support/thread_ranks.hpp"

using namespace muonrt;
using transport_test::on_ranks;

namespace {

std::atomic<int> threads_left = 1 << 30;  // that marked threads may start
thread_local bool marked = false;
std::atomic<int> name_error = 0, name_errno = 0;  // what getaddrinfo ends with

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// Visible to other libraries, whose calls they take.
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

namespace {

/// What two ranks return and say, one of which may start `nth` threads more.
struct Ended {
  muonrt_status_t status[2];
  std::string said[2];
};
template <class Work>
Ended with_few_threads(int faulty, int nth, const Work& work) {
  Ended out;
  threads_left = nth;
  on_ranks(2, [&](int rank) {
    marked = rank == faulty;
    out.status[rank] = work(rank, out.said[rank]);
    marked = false;
  });
  return out;
}

}  // namespace

TEST_CASE("refused: a thread that a creation needs is want of memory on every rank",
          "[unit][optimizer][abi]") {
  for (int faulty = 0; faulty < 2; ++faulty) {
    int failed = 0;
    for (bool refused = true; refused; failed += refused) {
      muonrt_thread_group_t* group = nullptr;
      muonrt_thread_group_create(&group, 2);
      muonrt_comm_t* comms[2];
      for (int rank = 0; rank < 2; ++rank) {
        muonrt_comm_create_thread(&comms[rank], group, rank);
        muonrt_comm_set_timeout(comms[rank], 20'000);
      }
      muonrt_thread_group_destroy(group);
      const Ended ended = with_few_threads(faulty, failed, [&](int rank, std::string& said) {
        muonrt_optimizer_options_t options;
        muonrt_optimizer_options_init(&options);
        options.threads = 3;
        OneMatrix trainer;
        const muonrt_status_t status = trainer.create(comms[rank], &options);
        said = muonrt_get_last_error();
        return status;
      });
      for (muonrt_comm_t* comm : comms) muonrt_comm_destroy(comm);
      refused = threads_left < 0;
      CAPTURE(faulty, failed, ended.said[0], ended.said[1]);
      for (int rank = 0; rank < 2; ++rank) {
        CHECK(ended.status[rank] == (refused ? MUONRT_ERROR_OUT_OF_MEMORY : MUONRT_OK));
        if (refused) CHECK_THAT(ended.said[rank], Catch::Contains("thread"));
      }
    }
    CHECK(failed >= 4);  // two of its pool, two streams
  }
}

TEST_CASE("refused: a thread that a connection needs is want of memory", "[unit][tcp]") {
  for (int faulty = 0; faulty < 2; ++faulty) {
    const int needed = faulty == 0 ? 2 : 1;  // the hub's and the reader's
    for (int nth = 0; nth <= needed; ++nth) {
      const std::string address = loopback::at_port(loopback::free_port()), secret(32, 's');
      const Ended ended = with_few_threads(faulty, nth, [&](int rank, std::string& said) {
        muonrt_tcp_options_t tcp;
        muonrt_tcp_options_init(&tcp);
        tcp.rank = rank;
        tcp.size = 2;
        tcp.address = address.c_str();
        tcp.secret = secret.data();
        tcp.secret_bytes = std::ssize(secret);
        muonrt_comm_t* comm = nullptr;
        muonrt_status_t status = muonrt_comm_create_tcp(&comm, &tcp);
        said = muonrt_get_last_error();
        // The other one has met by then; it finds that its peer has gone.
        if (comm && nth < needed) status = muonrt_comm_barrier(comm);
        muonrt_comm_destroy(comm);
        return status;
      });
      CAPTURE(faulty, nth, ended.said[0], ended.said[1]);
      CHECK(ended.status[faulty] == (nth < needed ? MUONRT_ERROR_OUT_OF_MEMORY : MUONRT_OK));
      CHECK(ended.status[1 - faulty] == (nth < needed ? MUONRT_ERROR_COMM : MUONRT_OK));
      if (nth < needed)
        CHECK_THAT(ended.said[faulty], Catch::Contains("cannot start a thread for"));
    }
  }
}

TEST_CASE("refused: a name that there is no memory to look up says nothing of the name",
          "[unit][comm][rendezvous]") {
  struct Row {
    int error, code;
    Status status;
  };
  for (const Row row :
       {Row{EAI_MEMORY, 0, Status::kOutOfMemory}, Row{EAI_SYSTEM, ENOMEM, Status::kOutOfMemory},
        Row{EAI_SYSTEM, EMFILE, Status::kComm}, Row{EAI_AGAIN, 0, Status::kComm}}) {
    CAPTURE(row.error, row.code);
    name_error = row.error;
    name_errno = row.code;
    const auto error = on_ranks(1, [](int) { resolve("localhost:80"); })[0];
    name_error = name_errno = 0;
    REQUIRE(error);
    CHECK(error->status() == row.status);
  }
  CHECK(!resolve("localhost:80").empty());
}

#endif
