#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>

#include "muonrt/comm.h"
#include "support/one_matrix.hpp"

namespace {

constexpr int kRanks = 2;

/// A rank of a thread group with an optimizer of one matrix, replicated.
struct Rank {
  Rank(muonrt_thread_group_t* group, int rank) {
    ok(muonrt_comm_create_thread(&comm, group, rank));
    ok(muonrt_comm_set_timeout(comm, 60000));
  }
  ~Rank() {
    trainer.destroy();
    muonrt_comm_destroy(comm);
  }
  static void ok(muonrt_status_t status) {
    if (status != MUONRT_OK) throw std::runtime_error(muonrt_last_error());
  }
  void make_optimizer() { ok(trainer.create(comm)); }
  muonrt_status_t step() { return trainer.step(); }

  muonrt_comm_t* comm = nullptr;
  OneMatrix trainer;
};

}  // namespace

TEST_CASE("abort: of a communicator ends the step of an optimizer that was made from it",
          "[unit][comm][tsan]") {
  // What says what becomes of a step is told as ABORTED.
  const auto [given, told] =
      GENERATE(std::pair{MUONRT_ERROR_IO, MUONRT_ERROR_IO},
               std::pair{MUONRT_ERROR_INVALID_ARGUMENT, MUONRT_ERROR_ABORTED},
               std::pair{MUONRT_ERROR_MISMATCH, MUONRT_ERROR_ABORTED},
               std::pair{MUONRT_ERROR_CALLBACK, MUONRT_ERROR_ABORTED},
               std::pair{MUONRT_ERROR_TORN, MUONRT_ERROR_ABORTED});
  const muonrt_status_t abort_with = given;
  muonrt_thread_group_t* group = nullptr;
  REQUIRE(muonrt_thread_group_create(&group, kRanks) == MUONRT_OK);
  std::atomic<int> made = 0, ended = 0;
  muonrt_status_t status[kRanks] = {};
  std::string message[kRanks];
  std::thread ranks[kRanks];
  for (int r = 0; r < kRanks; ++r) {
    ranks[r] = std::thread([&, r] {
      Rank rank(group, r);
      rank.make_optimizer();
      ++made;
      while (made < kRanks) std::this_thread::yield();
      // Rank 1 gives up before its step, rank 0 in it or before it.
      if (r == 1) muonrt_comm_abort(rank.comm, abort_with, "the data has ended");
      status[r] = rank.step();
      message[r] = muonrt_last_error();
      if (rank.step() != MUONRT_ERROR_INVALID_STATE) message[r] += "; it goes on";
      ++ended;
      while (ended < kRanks) std::this_thread::yield();  // not by destroying what it waits for
    });
  }
  for (std::thread& t : ranks) t.join();
  muonrt_thread_group_destroy(group);
  for (int r = 0; r < kRanks; ++r) {
    INFO(message[r]);
    CHECK(status[r] == told);
    CHECK(message[r].find("the data has ended") != std::string::npos);
    CHECK(message[r].find("it goes on") == std::string::npos);
  }
}

TEST_CASE("abort: an optimizer that is gone is told nothing, and its communicator may go first",
          "[unit][comm]") {
  muonrt_thread_group_t* group = nullptr;
  REQUIRE(muonrt_thread_group_create(&group, 1) == MUONRT_OK);
  {
    Rank rank(group, 0);
    rank.make_optimizer();
    rank.trainer.destroy();
    rank.make_optimizer();
    REQUIRE(rank.step() == MUONRT_OK);
    muonrt_comm_destroy(rank.comm);
    rank.comm = nullptr;
    CHECK(rank.step() == MUONRT_OK);
  }
  muonrt_thread_group_destroy(group);
  muonrt_comm_t* comm = nullptr;
  REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  for (const muonrt_status_t none : {0, 1, -1, 9, 14, 91, INT32_MAX}) {
    CHECK(muonrt_comm_abort(comm, none, nullptr) == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK(std::string(muonrt_last_error()).find("status is " + std::to_string(none)) !=
          std::string::npos);
  }
  CHECK(muonrt_comm_barrier(comm) == MUONRT_OK);
  CHECK(muonrt_comm_abort(comm, MUONRT_ERROR_ABORTED, nullptr) == MUONRT_OK);
  muonrt_comm_destroy(comm);
}
