// Tests failed allocations during the creation of optimizers and during steps, through the C ABI.

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "comm/thread_transport.hpp"
#include "muonrt/comm.h"
#include "muonrt/optimizer.h"
#include "muonrt/rendezvous.h"
#include "support/callback_table.hpp"
#include "support/faults/allocation_failure.hpp"
#include "support/loopback.hpp"
#include "support/one_matrix.hpp"
#include "support/sanitized.hpp"
#include "support/thread_ranks.hpp"

using support::AllocationFailure;
using support::refusal;

namespace {

/// Options with portable products, because the GEMM library cannot handle a failed allocation.
struct Portable {
  muonrt_debug_options_t debug;
  muonrt_optimizer_options_t options;

  Portable() {
    muonrt_debug_options_init(&debug);
    debug.portable_gemm = 1;
    muonrt_optimizer_options_init(&options);
    options.threads = 3;
    options.debug = &debug;
  }
  Portable(const Portable&) = delete;
  Portable& operator=(const Portable&) = delete;
};

/// How two ranks are connected.
enum class Over { kThreads, kTcp };

/// Connects a rank over TCP.
/// @param[out] status  The status of muonrt_comm_create_tcp().
muonrt_comm_t* connect_over_tcp(int rank, const std::string& address, int64_t timeout_ms,
                                muonrt_status_t& status) {
  static const char secret[] = "32 bytes or more that no other job knows";
  muonrt_tcp_options_t tcp;
  muonrt_tcp_options_init(&tcp);
  tcp.rank = rank;
  tcp.size = 2;
  tcp.address = address.c_str();
  tcp.secret = secret;
  tcp.secret_bytes = sizeof secret;
  tcp.timeout_ms = timeout_ms;
  muonrt_comm_t* comm = nullptr;
  status = muonrt_comm_create_tcp(&comm, &tcp);
  if (comm) muonrt_comm_set_timeout(comm, 20'000);
  return comm;
}

/// The communicators of two connected ranks.
class Pair {
 public:
  explicit Pair(Over over) {
    if (over == Over::kTcp) {
      const std::string address = loopback::at_port(loopback::free_port());
      support::refused(2, -1, -1, [&](int rank) {
        muonrt_status_t status = MUONRT_OK;
        comms[rank] = connect_over_tcp(rank, address, 20'000, status);
      });
      return;
    }
    muonrt_thread_group_t* group = nullptr;
    muonrt_thread_group_create(&group, 2);
    for (int rank = 0; rank < 2; ++rank) {
      muonrt_comm_create_thread(&comms[rank], group, rank);
      muonrt_comm_set_timeout(comms[rank], 20'000);
    }
    muonrt_thread_group_destroy(group);
  }
  ~Pair() {
    for (const int rank : {1, 0}) muonrt_comm_destroy(comms[rank]);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  muonrt_comm_t* comms[2] = {};
};

constexpr int kSteps = 2;
enum class In { kCreation, kStep };

/// The results of a run in which two ranks create an optimizer and run two steps, and one
/// allocation of rank `faulty` fails.
struct Created {
  muonrt_status_t status[2] = {}, step[2] = {};
  // If creation failed, the result of a second attempt with the same communicators.
  muonrt_status_t again[2] = {};
  float data[2] = {};
  bool fired = false;
};
Created create(Over over, In in, int faulty, int64_t nth) {
  Created out;
  const Pair pair(over);
  const Portable portable;
  OneMatrix trainers[2];
  out.fired = support::refused(2, faulty, in == In::kCreation ? nth : -1, [&](int rank) {
    out.status[rank] = trainers[rank].create(pair.comms[rank], &portable.options);
  });
  if (out.status[0] != MUONRT_OK) {
    support::refused(2, -1, -1, [&](int rank) {
      OneMatrix trainer;
      out.again[rank] = trainer.create(pair.comms[rank], &portable.options);
    });
  }
  out.fired |= support::refused(2, faulty, in == In::kStep ? nth : -1, [&](int rank) {
    if (!trainers[rank].optimizer) return;
    for (int step = 0; step < kSteps && out.step[rank] == MUONRT_OK; ++step) {
      out.step[rank] = trainers[rank].step();
      if (out.step[rank] == MUONRT_ERROR_OUT_OF_MEMORY) out.step[rank] = trainers[rank].step();
    }
    out.data[rank] = trainers[rank].data[0];
  });
  for (OneMatrix& trainer : trainers) trainer.destroy();
  return out;
}

/// Makes one allocation fail in each run, and checks the results.
/// @param stride  The number of the failing allocation increases by this value from run to run.
void check(Over over, In in, int64_t stride) {
  const float stepped = create(over, in, 0, -1).data[0];
  for (int faulty = 0; faulty < 2; ++faulty) {
    int64_t failed = 0;
    bool fired = true;
    for (int64_t nth = 0; fired; nth += stride) {
      const Created seen = create(over, in, faulty, nth);
      CAPTURE(faulty, nth);
      const muonrt_status_t status = seen.status[0];
      CHECK(status == seen.status[1]);
      // After OUT_OF_MEMORY, the ranks may create the optimizer again. After COMM, the communicator
      // is unusable, unless the error has ended only the optimizer's duplicate.
      CHECK((status == MUONRT_OK || (in == In::kCreation && (status == MUONRT_ERROR_OUT_OF_MEMORY ||
                                                             status == MUONRT_ERROR_COMM))));
      for (int rank = 0; rank < 2; ++rank) {
        CHECK(seen.step[rank] == MUONRT_OK);
        CHECK((seen.again[rank] == MUONRT_OK ||
               (status == MUONRT_ERROR_COMM && seen.again[rank] == status)));
        if (status == MUONRT_OK) CHECK(seen.data[rank] == stepped);
      }
      failed += status != MUONRT_OK;
      fired = seen.fired;
    }
    CHECK((kSanitized || in == In::kStep || failed > 10 / stride));
  }
}

}  // namespace

TEST_CASE("out of memory: a creation fails on every rank or on none", "[unit][optimizer][abi]") {
  check(Over::kThreads, In::kCreation, 1);
}

TEST_CASE("out of memory: other collectives fail on every rank or on none, and no rank waits",
          "[unit][comm][abi]") {
  const auto barrier = [](muonrt_comm_t* comm, int) { return muonrt_comm_barrier(comm); };
  const auto exchange = [](muonrt_comm_t* comm, int rank) {
    char mine = 1, other = 0;
    const muonrt_send_t send{1 - rank, 0, &mine, 1};
    const muonrt_receive_t receive{1 - rank, 0, &other, 1};
    return muonrt_comm_exchange(comm, &send, 1, &receive, 1);
  };
  using Call = muonrt_status_t (*)(muonrt_comm_t*, int);
  for (const Call call : {Call(barrier), Call(exchange)}) {
    int failed = 0;
    for (int64_t nth = 0;; ++nth) {
      const Pair pair(Over::kThreads);
      muonrt_status_t status[2] = {};
      const bool fired = support::refused(
          2, 1, nth, [&](int rank) { status[rank] = call(pair.comms[rank], rank); });
      CAPTURE(nth);
      CHECK(status[0] == status[1]);
      CHECK((status[0] == MUONRT_OK || status[0] == MUONRT_ERROR_OUT_OF_MEMORY ||
             status[0] == MUONRT_ERROR_COMM));
      if (!fired) break;
      failed += status[0] != MUONRT_OK;
    }
    CHECK((kSanitized || failed > 0));
  }
}

namespace {

/// Transport functions that count duplicates. Their allocations never fail, because they belong to
/// the caller.
std::atomic<int> duplicates;
muonrt_status_t counted_duplicate(void* state, muonrt_transport_t* out, int64_t timeout_ms,
                                  char* message, int64_t capacity) {
  AllocationFailure::mark(false);
  const auto status = callback_table::duplicate(state, out, timeout_ms, message, capacity);
  AllocationFailure::mark(true);
  duplicates += status == MUONRT_OK;
  return status;
}

}  // namespace

TEST_CASE("out of memory: the state of callbacks is destroyed once", "[unit][abi]") {
  const Portable portable;
  int failed = 0;
  bool fired = true;
  for (int64_t nth = 0; fired; nth += nth < 20 ? 1 : 7) {
    CAPTURE(nth);
    std::atomic<int> destroyed = 0;
    duplicates = 0;
    muonrt::ThreadGroup group(1);
    muonrt_transport_t table = callback_table::table_over(group.transport(0), destroyed);
    table.duplicate = counted_duplicate;
    muonrt_comm_t* comm = nullptr;
    muonrt_status_t status[2] = {};
    OneMatrix trainer;
    fired = support::refused(1, 0, nth, [&](int) {
      status[0] = muonrt_comm_create_callbacks(&comm, &table);
      if (comm) status[1] = trainer.create(comm, &portable.options);
    });
    trainer.destroy();
    if (!comm) {  // without a communicator, the caller must destroy the state
      CHECK((status[0] == MUONRT_ERROR_OUT_OF_MEMORY && destroyed == 0));
      table.destroy(table.state);
    }
    muonrt_comm_destroy(comm);
    CHECK(destroyed == 1 + duplicates);
    failed += comm == nullptr || status[1] != MUONRT_OK;
  }
  CHECK((kSanitized || failed > 10));
}

TEST_CASE("out of memory: over TCP steps and creations end as over threads",
          "[unit][optimizer][tcp]") {
  check(Over::kTcp, In::kStep, 5);
  check(Over::kTcp, In::kCreation, 29);
}

TEST_CASE("out of memory: over TCP steps allocate no memory for received messages",
          "[unit][optimizer][tcp]") {
  const Created well = create(Over::kTcp, In::kStep, 0, -1);
  const Pair pair(Over::kTcp);
  OneMatrix trainers[2];
  muonrt_status_t status[2] = {};
  refusal.disarm();
  transport_test::on_ranks(2, [&](int rank) {
    AllocationFailure::mark(false);
    const Portable portable;
    OneMatrix& trainer = trainers[rank];
    status[rank] = trainer.create(pair.comms[rank], &portable.options);
    muonrt_comm_barrier(pair.comms[rank]);
    refusal.begin_drought();
    for (int step = 0; step < kSteps && status[rank] == MUONRT_OK; ++step)
      status[rank] = trainer.step();
    muonrt_comm_barrier(pair.comms[rank]);
  });
  refusal.disarm();
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(status[rank] == MUONRT_OK);
    CHECK(trainers[rank].data[0] == well.data[0]);
    trainers[rank].destroy();
  }
}

namespace {

struct TcpRendezvousCase {
  static std::string place(int64_t) { return loopback::at_port(loopback::free_port()); }
  muonrt_comm_t* operator()(int rank, const std::string& place, muonrt_status_t& status) const {
    return connect_over_tcp(rank, place, 20'000, status);
  }
};

struct FolderRendezvousCase {
  const loopback::Folder folder;
  static std::string place(int64_t nth) { return "rendezvous-" + std::to_string(nth); }
  muonrt_comm_t* operator()(int rank, const std::string& place, muonrt_status_t& status) const {
    muonrt_folder_options_t given;
    muonrt_folder_options_init(&given);
    given.rank = rank;
    given.size = 2;
    given.path = folder.path().c_str();
    given.run_id = place.c_str();
    given.timeout_ms = 20'000;
    muonrt_comm_t* comm = nullptr;
    status = muonrt_comm_create_folder(&comm, &given);
    return comm;
  }
};

/// Checks a rendezvous in which an allocation of rank `faulty` fails. This rank must retry, or
/// return the error and free everything. The other rank must receive the error, unless it is
/// already connected. No rank may wait until the timeout.
/// @param rendezvous  Connects a rank in the n-th rendezvous.
template <class Rendezvous>
void check_rendezvous(int64_t stride, const Rendezvous& rendezvous) {
  for (int faulty = 0; faulty < 2; ++faulty) {
    bool fired = true;
    int64_t connected_after_failure = 0;
    for (int64_t nth = 0; fired; nth += stride) {
      const std::string place = rendezvous.place(nth);
      muonrt_status_t connected[2] = {MUONRT_ERROR_INTERNAL, MUONRT_ERROR_INTERNAL};
      std::string messages[2];
      fired = support::refused(2, faulty, nth, [&](int rank) {
        muonrt_comm_t* const comm = rendezvous(rank, place, connected[rank]);
        AllocationFailure::mark(false);
        messages[rank] = muonrt_get_last_error();
        muonrt_comm_destroy(comm);
      });
      CAPTURE(faulty, nth, connected[0], connected[1], messages[0], messages[1]);
      if (!fired) {
        CHECK(connected[0] == MUONRT_OK);
        CHECK(connected[1] == MUONRT_OK);
      }
      CHECK((connected[faulty] == MUONRT_OK || connected[faulty] == MUONRT_ERROR_OUT_OF_MEMORY));
      connected_after_failure += fired && connected[0] == MUONRT_OK && connected[1] == MUONRT_OK;
      for (const muonrt_status_t status : connected) {
        CHECK(status != MUONRT_ERROR_INTERNAL);
        CHECK(status != MUONRT_ERROR_INVALID_ARGUMENT);
        CHECK(status != MUONRT_ERROR_TIMEOUT);
      }
    }
    CHECK((kSanitized || connected_after_failure > 0));
  }
}

}  // namespace

TEST_CASE("out of memory: a rendezvous over TCP ends on every rank", "[unit][tcp]") {
  check_rendezvous(5, TcpRendezvousCase());
}

TEST_CASE("out of memory: a rendezvous in a folder ends on every rank", "[unit][tcp]") {
  check_rendezvous(7, FolderRendezvousCase());
}

TEST_CASE("out of memory: over TCP every allocation may fail", "[.full]") {
  check(Over::kTcp, In::kStep, 1);
  check(Over::kTcp, In::kCreation, 1);
  check_rendezvous(1, TcpRendezvousCase());
  check_rendezvous(1, FolderRendezvousCase());
}
