// Memory is refused while optimizers are created, and make steps, through the C ABI.

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "muonrt/comm.h"
#include "muonrt/rendezvous.h"
#include "muonrt/strategies.h"
#include "support/faults/allocation_failure.hpp"
#include "support/loopback.hpp"
#include "support/one_matrix.hpp"
#include "support/sanitized.hpp"
#include "support/thread_ranks.hpp"

using support::AllocationFailure;
using support::refusal;

namespace {

/// Other libraries do not survive it.
muonrt_optimizer_options_t portable() {
  muonrt_optimizer_options_t options;
  muonrt_optimizer_options_init(&options);
  options.portable_gemm = 1;
  options.threads = 3;
  return options;
}

/// How two ranks meet.
enum class Over { kThreads, kTcp };

/// @param status  of the meeting.
muonrt_comm_t* meet_over_tcp(int rank, const std::string& address, int64_t timeout_ms,
                             muonrt_status_t& status) {
  static const char secret[] = "32 bytes or more that nobody knows";
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

/// Two ranks that have met.
class Pair {
 public:
  explicit Pair(Over over) {
    if (over == Over::kTcp) {
      const std::string address = loopback::at_port(loopback::free_port());
      support::refused(2, -1, -1, [&](int rank) {
        muonrt_status_t status = MUONRT_OK;
        comms[rank] = meet_over_tcp(rank, address, 20'000, status);
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

/// A creation, and two steps, of two ranks through the C ABI; `faulty` is refused an allocation.
struct Created {
  muonrt_status_t status[2] = {}, step[2] = {};
  muonrt_status_t again[2] = {};  // where it failed: of another one over the same communicators
  float data[2] = {};
  bool fired = false;
};
Created create(Over over, In in, int faulty, int64_t nth) {
  Created out;
  const Pair pair(over);
  const muonrt_optimizer_options_t options = portable();
  OneMatrix trainers[2];
  out.fired = support::refused(2, faulty, in == In::kCreation ? nth : -1, [&](int rank) {
    out.status[rank] = trainers[rank].create(pair.comms[rank], &options);
  });
  if (out.status[0] != MUONRT_OK) {
    support::refused(2, -1, -1, [&](int rank) {
      OneMatrix trainer;
      out.again[rank] = trainer.create(pair.comms[rank], &options);
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

/// @param stride  every so many allocations one is refused.
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
      // OUT_OF_MEMORY: it may be repeated; COMM: their communicator has ended with it.
      CHECK((status == MUONRT_OK || (in == In::kCreation && (status == MUONRT_ERROR_OUT_OF_MEMORY ||
                                                             status == MUONRT_ERROR_COMM))));
      for (int rank = 0; rank < 2; ++rank) {
        CHECK(seen.step[rank] == MUONRT_OK);
        CHECK(seen.again[rank] == (status == MUONRT_ERROR_COMM ? status : MUONRT_OK));
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

TEST_CASE("out of memory: other collectives fail on every rank or on none, and keep nobody waiting",
          "[unit][comm][abi]") {
  const auto barrier = [](muonrt_comm_t* comm, int) { return muonrt_comm_barrier(comm); };
  const auto exchange = [](muonrt_comm_t* comm, int rank) {
    char mine = 1, other = 0;
    const muonrt_message_t send{1 - rank, 0, &mine, 1}, receive{1 - rank, 0, &other, 1};
    return muonrt_comm_exchange(comm, &send, 1, &receive, 1);
  };
  const auto mesh = [](muonrt_comm_t* comm, int) {
    const int32_t all[2] = {0, 1};
    int32_t room[2];
    muonrt_process_groups_t groups;
    muonrt_process_groups_init(&groups);
    groups.dp = all;
    groups.n_dp = 2;
    muonrt_mesh_storage_t storage;
    muonrt_mesh_storage_init(&storage);
    storage.ranks = room;
    storage.capacity = 2;
    muonrt_mesh_t made{};
    return muonrt_mesh_from_groups(&made, &storage, comm, &groups);
  };
  using Call = muonrt_status_t (*)(muonrt_comm_t*, int);
  for (const Call call : {Call(barrier), Call(exchange), Call(mesh)}) {
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

TEST_CASE("out of memory: over TCP steps and creations end as over threads",
          "[unit][optimizer][tcp]") {
  check(Over::kTcp, In::kStep, 5);
  check(Over::kTcp, In::kCreation, 29);
}

TEST_CASE("out of memory: over TCP steps need none for what comes", "[unit][optimizer][tcp]") {
  const Created well = create(Over::kTcp, In::kStep, 0, -1);
  const Pair pair(Over::kTcp);
  OneMatrix trainers[2];
  muonrt_status_t status[2] = {};
  refusal.disarm();
  transport_test::on_ranks(2, [&](int rank) {
    AllocationFailure::mark(false);
    const muonrt_optimizer_options_t options = portable();
    OneMatrix& trainer = trainers[rank];
    status[rank] = trainer.create(pair.comms[rank], &options);
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

struct MeetOverTcp {
  static std::string place(int64_t) { return loopback::at_port(loopback::free_port()); }
  muonrt_comm_t* operator()(int rank, const std::string& place, muonrt_status_t& status) const {
    return meet_over_tcp(rank, place, 20'000, status);
  }
};

struct MeetInFolder {
  const loopback::Folder folder;
  static std::string place(int64_t nth) { return "meeting-" + std::to_string(nth); }
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

/// A meeting in which `faulty` is refused an allocation tries again, or says so; what it had begun
/// ends with it. A peer is told, or had met by then: nobody waits for the deadline.
/// @param meet  a rank of the nth meeting.
template <class Meet>
void check_meetings(int64_t stride, const Meet& meet) {
  for (int faulty = 0; faulty < 2; ++faulty) {
    bool fired = true;
    int64_t met_after_all = 0;
    for (int64_t nth = 0; fired; nth += stride) {
      const std::string place = meet.place(nth);
      muonrt_status_t met[2] = {MUONRT_ERROR_INTERNAL, MUONRT_ERROR_INTERNAL};
      std::string said[2];
      fired = support::refused(2, faulty, nth, [&](int rank) {
        muonrt_comm_t* const comm = meet(rank, place, met[rank]);
        AllocationFailure::mark(false);
        said[rank] = muonrt_get_last_error();
        muonrt_comm_destroy(comm);
      });
      CAPTURE(faulty, nth, met[0], met[1], said[0], said[1]);
      if (!fired) {
        CHECK(met[0] == MUONRT_OK);
        CHECK(met[1] == MUONRT_OK);
      }
      CHECK((met[faulty] == MUONRT_OK || met[faulty] == MUONRT_ERROR_OUT_OF_MEMORY));
      met_after_all += fired && met[0] == MUONRT_OK && met[1] == MUONRT_OK;
      for (const muonrt_status_t status : met) {
        CHECK(status != MUONRT_ERROR_INTERNAL);
        CHECK(status != MUONRT_ERROR_INVALID_ARGUMENT);
        CHECK(status != MUONRT_ERROR_TIMEOUT);
      }
    }
    CHECK((kSanitized || met_after_all > 0));
  }
}

}  // namespace

TEST_CASE("out of memory: a meeting over TCP ends on every rank", "[unit][tcp]") {
  check_meetings(5, MeetOverTcp());
}

TEST_CASE("out of memory: a meeting in a folder ends on every rank", "[unit][tcp]") {
  check_meetings(7, MeetInFolder());
}

TEST_CASE("out of memory: over TCP every allocation may be refused", "[.full]") {
  check(Over::kTcp, In::kStep, 1);
  check(Over::kTcp, In::kCreation, 1);
  check_meetings(1, MeetOverTcp());
  check_meetings(1, MeetInFolder());
}
