#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "api/handles.hpp"
#include "muonrt/comm.h"
#include "muonrt/rendezvous.h"
#include "optimizer/agreement.hpp"
#include "support/loopback.hpp"
#include "support/one_matrix.hpp"
#include "support/thread_ranks.hpp"

using namespace muonrt;
using transport_test::on_ranks;
using transport_test::text_of;

namespace {

constexpr int kRanks = 3;
constexpr int64_t kDeadlineMs = 20000;

void ok(muonrt_status_t status) {
  if (status != MUONRT_OK) throw Error(static_cast<Status>(status), muonrt_get_last_error());
}

/// Waits until all ranks have called pass().
class Gate {
 public:
  void pass() {
    const int turn = count_++ / kRanks;
    while (count_ < (turn + 1) * kRanks) std::this_thread::yield();
  }

 private:
  std::atomic<int> count_ = 0;
};

/// The result of a run in which each rank of a thread group creates an optimizer and runs a step.
/// The communicator of rank `who` is aborted before or after the delivery of message `at`.
struct AbortResult {
  std::vector<std::optional<Error>> errors;
  bool aborted = false;
};
AbortResult abort_at(int64_t at, int who, bool before) {
  std::atomic<int64_t> deliveries = 0;
  std::atomic<bool> aborted = false, creating = true;
  std::vector<muonrt_comm_t*> comms(kRanks);
  const auto count = [&](const ThreadMessage&) {
    if (!creating || deliveries++ != at) return;
    aborted = true;
    muonrt_comm_abort(comms[static_cast<size_t>(who)], MUONRT_ERROR_ABORTED, "stop");
  };
  ThreadFaults faults;
  (before ? faults.before_delivery : faults.after_delivery) = count;
  muonrt_thread_group group{ThreadGroup(kRanks, faults)};
  for (int r = 0; r < kRanks; ++r) {
    ok(muonrt_comm_create_thread(&comms[static_cast<size_t>(r)], &group, r));
    ok(muonrt_comm_set_timeout(comms[static_cast<size_t>(r)], kDeadlineMs));
  }
  Gate gate;
  AbortResult out;
  out.errors = on_ranks(kRanks, [&](int r) {
    OneMatrix trainer;
    const auto failed = capture_error([&] { ok(trainer.create(comms[static_cast<size_t>(r)])); });
    gate.pass();  // a rank that destroys its objects earlier would cause errors on other ranks
    creating = false;
    const auto stepped = failed ? failed : capture_error([&] { ok(trainer.step()); });
    gate.pass();
    if (stepped) throw *stepped;
  });
  out.aborted = aborted;
  for (muonrt_comm_t* comm : comms) muonrt_comm_destroy(comm);
  return out;
}

void check_all_aborted(const std::vector<std::optional<Error>>& errors) {
  INFO(text_of(errors));
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(error->status() == Status::kAborted);
    CHECK(error->message().find("stop") != std::string::npos);
  }
}

}  // namespace

TEST_CASE("abort: at every message of an optimizer's creation it ends the creation or the step",
          "[unit][comm]") {
  for (const bool before : {true, false}) {
    for (int who = 0; who < kRanks; ++who) {
      int64_t at = 0;
      for (;; ++at) {
        CAPTURE(at, who, before);
        const auto begin = std::chrono::steady_clock::now();
        const AbortResult result = abort_at(at, who, before);
        // No rank has waited until its timeout.
        CHECK(std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(kDeadlineMs));
        if (!result.aborted) {
          CHECK(text_of(result.errors).empty());
          break;
        }
        check_all_aborted(result.errors);
      }
      CHECK(at >= 5 * kRanks * (kRanks - 1));  // because the run has at least five collectives
    }
  }
}

namespace {

using Make = std::function<muonrt_comm_t*(int rank)>;

void abort_at_any_time(int runs, const std::function<Make()>& rendezvous) {
  uint32_t random = 1;
  for (int run = 0; run < runs; ++run) {
    CAPTURE(run);
    std::vector<muonrt_comm_t*> comms(kRanks);
    const Make make = rendezvous();
    REQUIRE(text_of(on_ranks(kRanks, [&](int r) {
              comms[static_cast<size_t>(r)] = make(r);
              ok(muonrt_comm_set_timeout(comms[static_cast<size_t>(r)], kDeadlineMs));
            })) == "");
    Gate gate;
    std::atomic<bool> begun = false, aborted = false;
    random = random * 1664525u + 1013904223u;
    std::thread other([&] {
      while (!begun) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::microseconds(random % 3000u));
      muonrt_comm_abort(comms[0], MUONRT_ERROR_ABORTED, "stop");
      aborted = true;
    });
    const auto errors = on_ranks(kRanks, [&](int r) {
      begun = true;
      OneMatrix trainer;
      const auto failed = capture_error([&] { ok(trainer.create(comms[static_cast<size_t>(r)])); });
      while (!aborted) std::this_thread::yield();
      gate.pass();
      const auto stepped = failed ? failed : capture_error([&] { ok(trainer.step()); });
      gate.pass();
      if (stepped) throw *stepped;
    });
    other.join();
    check_all_aborted(errors);
    on_ranks(kRanks, [&](int r) { muonrt_comm_destroy(comms[static_cast<size_t>(r)]); });
  }
}

}  // namespace

TEST_CASE("abort: at any time of an optimizer's creation", "[unit][comm][tsan]") {
  abort_at_any_time(200, []() -> Make {
    const auto group = std::make_shared<muonrt_thread_group>(ThreadGroup(kRanks));
    return [group](int rank) {
      muonrt_comm_t* comm = nullptr;
      ok(muonrt_comm_create_thread(&comm, group.get(), rank));
      return comm;
    };
  });
}

TEST_CASE("abort: at any time of a creation over TCP", "[unit][comm][rendezvous]") {
  abort_at_any_time(20, []() -> Make {
    const std::string address = loopback::at_port(loopback::free_port());
    return [address](int rank) {
      muonrt_tcp_options_t tcp;
      muonrt_tcp_options_init(&tcp);
      tcp.rank = rank;
      tcp.size = kRanks;
      tcp.address = address.c_str();
      tcp.secret = "this run's secret";
      tcp.secret_bytes = 17;
      muonrt_comm_t* comm = nullptr;
      ok(muonrt_comm_create_tcp(&comm, &tcp));
      return comm;
    };
  });
}

TEST_CASE(
    "abort: an abort of a communicator ends the step of an optimizer that was created from it",
    "[unit][comm][tsan]") {
  // If a caller aborts with a status that describes the outcome of a step, ABORTED is published.
  for (const auto& [given, published] : {std::pair{MUONRT_ERROR_IO, Status::kIo},
                                         std::pair{MUONRT_ERROR_INVALID_ARGUMENT, Status::kAborted},
                                         std::pair{MUONRT_ERROR_MISMATCH, Status::kAborted},
                                         std::pair{MUONRT_ERROR_CALLBACK, Status::kAborted},
                                         std::pair{MUONRT_ERROR_TORN, Status::kAborted}}) {
    muonrt_thread_group group{ThreadGroup(kRanks)};
    Gate gate;
    const auto errors = on_ranks(kRanks, [&, abort_with = given](int r) {
      muonrt_comm_t* comm = nullptr;
      OneMatrix trainer;
      ok(muonrt_comm_create_thread(&comm, &group, r));
      ok(trainer.create(comm));
      gate.pass();
      // Rank 1 aborts before its step, while each other rank is in its step or before it.
      if (r == 1) muonrt_comm_abort(comm, abort_with, "the data has ended");
      const auto error = capture_error([&] { ok(trainer.step()); });
      const bool ended = trainer.step() == MUONRT_ERROR_INVALID_STATE;
      gate.pass();  // so that no destroyed communicator causes the error
      trainer.destroy();
      muonrt_comm_destroy(comm);
      transport_test::require_none(ended ? "" : "the optimizer is still usable");
      if (error) throw *error;
    });
    INFO(text_of(errors));
    for (size_t r = 0; r < kRanks; ++r) {
      REQUIRE(errors[r]);
      // Only rank 0 owns a matrix, so the other ranks may have voted before the abort reaches them.
      // A rank that has voted cannot know whether the other ranks have committed the step.
      const bool voted = r != 1 && errors[r]->status() == Status::kUndecided;
      if (!voted) CHECK(errors[r]->status() == published);
      CHECK(errors[r]->message().find("the data has ended") != std::string::npos);
    }
  }
}

TEST_CASE("abort: invalid statuses are rejected, and a communicator may be destroyed first",
          "[unit][comm]") {
  muonrt_comm_t* comm = nullptr;
  OneMatrix trainer;
  ok(muonrt_comm_create_self(&comm));
  ok(trainer.create(comm));
  trainer.destroy();
  ok(trainer.create(comm));
  for (const muonrt_status_t none : {0, 1, -1, 9, 14, 91, INT32_MAX}) {
    CHECK(muonrt_comm_abort(comm, none, nullptr) == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK(std::string(muonrt_get_last_error()).find("status is " + std::to_string(none)) !=
          std::string::npos);
  }
  CHECK(trainer.step() == MUONRT_OK);
  muonrt_comm_destroy(comm);
  CHECK(trainer.step() == MUONRT_OK);
  ok(muonrt_comm_create_self(&comm));
  // The message may be null.
  CHECK(muonrt_comm_abort(comm, MUONRT_ERROR_ABORTED, nullptr) == MUONRT_OK);
  muonrt_comm_destroy(comm);
}
