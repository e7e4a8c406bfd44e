// Memory is refused while optimizers are created, and make steps, through the C ABI.

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "muonrt/comm.h"
#include "muonrt/rendezvous.h"
#include "support/loopback.hpp"
#include "support/one_matrix.hpp"
#include "support/refusal.hpp"
#include "support/sanitized.hpp"
#include "support/thread_ranks.hpp"

using support::Refusal;
using support::refusal;

namespace {

/// Other libraries do not survive it.
muonrt_optimizer_options_t portable() {
  muonrt_optimizer_options_t options;
  muonrt_optimizer_options_init(&options);
  options.portable_gemm = 1;
  return options;
}

/// A creation, and a step, of two threads through the C ABI; `faulty` is refused an allocation.
struct Created {
  muonrt_status_t status[2] = {}, step[2] = {};
  float data[2] = {};
  bool fired = false;
};
Created create(int faulty, int64_t nth, bool in_step) {
  Created out;
  refusal.disarm();
  Refusal::mark(false);
  muonrt_thread_group_t* group = nullptr;
  muonrt_thread_group_create(&group, 2);
  muonrt_comm_t* comms[2];
  for (int rank = 0; rank < 2; ++rank) {
    muonrt_comm_create_thread(&comms[rank], group, rank);
    muonrt_comm_set_timeout(comms[rank], 20'000);
  }
  if (!in_step) refusal.arm(nth);
  OneMatrix trainers[2];
  transport_test::on_ranks(2, [&](int rank) {
    const muonrt_optimizer_options_t options = portable();
    OneMatrix& trainer = trainers[rank];
    Refusal::mark(rank == faulty);
    out.status[rank] = trainer.create(comms[rank], &options);
    Refusal::mark(false);
  });
  out.fired = refusal.fired();
  refusal.disarm();
  if (in_step) refusal.arm(nth);
  transport_test::on_ranks(2, [&](int rank) {
    if (!trainers[rank].optimizer) return;
    Refusal::mark(rank == faulty);
    out.step[rank] = trainers[rank].step();
    Refusal::mark(false);
    if (out.step[rank] == MUONRT_ERROR_OUT_OF_MEMORY) out.step[rank] = trainers[rank].step();
    out.data[rank] = trainers[rank].data[0];
  });
  out.fired = out.fired || refusal.fired();
  refusal.disarm();
  for (muonrt_comm_t* comm : comms) muonrt_comm_destroy(comm);
  muonrt_thread_group_destroy(group);
  return out;
}

void check_creations() {
  const float stepped = create(0, 1 << 30, false).data[0];
  for (int faulty = 0; faulty < 2; ++faulty) {
    int64_t failed = 0;
    for (int64_t nth = 0;; ++nth) {
      const Created seen = create(faulty, nth, false);
      CAPTURE(faulty, nth);
      CHECK(seen.status[0] == seen.status[1]);
      if (!seen.fired) break;
      const bool made = seen.status[0] == MUONRT_OK;
      CHECK((made || seen.status[0] == MUONRT_ERROR_OUT_OF_MEMORY));
      CHECK((!made || (seen.data[0] == stepped && seen.data[1] == stepped)));
      failed += !made;
    }
    CHECK((kSanitized || failed > 10));
  }
}

}  // namespace

TEST_CASE("out of memory: through the C ABI a step of every rank ends, and repeated gives the same",
          "[unit][optimizer][abi]") {
  const Created well = create(0, 1 << 30, true);
  for (int faulty = 0; faulty < 2; ++faulty) {
    for (int64_t nth = 0;; ++nth) {
      const Created seen = create(faulty, nth, true);
      CAPTURE(faulty, nth);
      for (int rank = 0; rank < 2; ++rank) {
        CHECK(seen.step[rank] == MUONRT_OK);
        CHECK(seen.data[rank] == well.data[0]);
      }
      if (!seen.fired) break;
    }
  }
}

TEST_CASE("out of memory: a creation fails on every rank or on none", "[unit][optimizer][abi]") {
  check_creations();
}

namespace {

/// @param status  of the meeting.
muonrt_comm_t* meet_over_tcp(int rank, const std::string& address, int64_t timeout_ms,
                             muonrt_status_t& status) {
  const std::string secret(32, 's');
  muonrt_tcp_t tcp;
  muonrt_tcp_init(&tcp);
  tcp.rank = rank;
  tcp.size = 2;
  tcp.address = address.c_str();
  tcp.secret = secret.data();
  tcp.secret_bytes = std::ssize(secret);
  tcp.timeout_ms = timeout_ms;
  muonrt_comm_t* comm = nullptr;
  status = muonrt_comm_create_tcp(&comm, &tcp);
  if (comm) muonrt_comm_set_timeout(comm, 20'000);
  return comm;
}

/// A creation and two steps over TCP, whose threads are refused memory, too.
/// @return  what each rank's last call was.
std::vector<muonrt_status_t> over_tcp(int faulty, int64_t nth, bool& fired) {
  refusal.disarm();
  Refusal::mark(false);
  const std::string address = loopback::at_port(loopback::free_port());
  std::vector<muonrt_status_t> last(2, MUONRT_ERROR_INTERNAL);
  transport_test::on_ranks(2, [&](int rank) {
    Refusal::mark(false);
    muonrt_status_t status = MUONRT_OK;
    muonrt_comm_t* const comm = meet_over_tcp(rank, address, 20'000, status);
    muonrt_comm_barrier(comm);
    if (rank == faulty) refusal.arm(nth);
    muonrt_comm_barrier(comm);
    OneMatrix trainer;
    const muonrt_optimizer_options_t options = portable();
    Refusal::mark(rank == faulty);
    status = trainer.create(comm, &options);
    for (int step = 0; step < 2 && status == MUONRT_OK; ++step) status = trainer.step();
    Refusal::mark(false);
    last[static_cast<size_t>(rank)] = status;
    trainer.destroy();
    muonrt_comm_destroy(comm);
  });
  fired = refusal.fired();
  refusal.disarm();
  return last;
}

/// Whatever is refused, nobody waits for the deadline of those who have failed.
/// @param stride  every so many allocations one is refused.
void check_tcp(int64_t stride) {
  for (int faulty = 0; faulty < 2; ++faulty) {
    bool fired = true;
    for (int64_t nth = 0; fired; nth += stride) {
      const auto last = over_tcp(faulty, nth, fired);
      CAPTURE(faulty, nth, last);
      for (const muonrt_status_t status : last) {
        CHECK(status != MUONRT_ERROR_TIMEOUT);
        CHECK(status != MUONRT_ERROR_INTERNAL);
        if (!fired) CHECK(status == MUONRT_OK);
      }
      REQUIRE(nth < 100'000);
    }
  }
}

/// A meeting in which `faulty` is refused an allocation says so; what it had begun ends with it.
void check_meetings(int64_t stride) {
  for (int faulty = 0; faulty < 2; ++faulty) {
    bool fired = true;
    for (int64_t nth = 0; fired; nth += stride) {
      refusal.disarm();
      Refusal::mark(false);
      const std::string address = loopback::at_port(loopback::free_port());
      muonrt_status_t met[2];
      std::string said[2];
      refusal.arm(nth);
      transport_test::on_ranks(2, [&](int rank) {
        Refusal::mark(rank == faulty);
        muonrt_comm_t* const comm = meet_over_tcp(rank, address, 500, met[rank]);
        Refusal::mark(false);
        said[rank] = muonrt_last_error();
        muonrt_comm_destroy(comm);
      });
      fired = refusal.fired();
      refusal.disarm();
      CAPTURE(faulty, nth, met[0], met[1], said[0], said[1]);
      if (!fired) {
        CHECK(met[0] == MUONRT_OK);
        CHECK(met[1] == MUONRT_OK);
      }
      for (const muonrt_status_t status : met) {
        CHECK(status != MUONRT_ERROR_INTERNAL);
        CHECK(status != MUONRT_ERROR_INVALID_ARGUMENT);
      }
    }
  }
}

}  // namespace

TEST_CASE("out of memory: a meeting over TCP ends on every rank", "[unit][tcp]") {
  check_meetings(5);
}

TEST_CASE("out of memory: over TCP a rank that has none keeps nobody waiting",
          "[unit][optimizer][tcp]") {
  check_tcp(23);
}

TEST_CASE("out of memory: over TCP every allocation may be refused", "[.full]") {
  check_tcp(1);
  check_meetings(1);
}
