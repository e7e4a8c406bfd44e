#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>

#include "muonrt/comm.h"
#include "muonrt/optimizer.h"

namespace {

constexpr int kRanks = 2;

/// A rank of a thread group with an optimizer of one matrix, replicated.
struct Rank {
  Rank(muonrt_thread_group_t* group, int rank) {
    ok(muonrt_comm_create_thread(&comm, group, rank));
    ok(muonrt_comm_set_timeout(comm, 60000));
  }
  ~Rank() {
    muonrt_optimizer_destroy(optimizer);
    muonrt_comm_destroy(comm);
  }
  static void ok(muonrt_status_t status) {
    if (status != MUONRT_OK) throw std::runtime_error(muonrt_last_error());
  }
  void make_optimizer() {
    muonrt_group_t settings;
    muonrt_group_init(&settings, MUONRT_ROLE_MUON);
    muonrt_param_t param;
    muonrt_param_init(&param);
    param.name = "w";
    param.ndim = 2;
    param.shape = shape;
    param.dtype = MUONRT_DTYPE_F32;
    param.data = data;
    param.grad = grad;
    ok(muonrt_optimizer_create(&optimizer, comm, nullptr, &settings, 1, &param, 1));
  }
  muonrt_status_t step() {
    muonrt_step_t args;
    muonrt_step_init(&args);
    args.lr = 0.1;
    return muonrt_optimizer_step(optimizer, &args, nullptr);
  }

  muonrt_comm_t* comm = nullptr;
  muonrt_optimizer_t* optimizer = nullptr;
  const int64_t shape[2] = {2, 3};
  float data[6] = {1, 2, 3, 4, 5, 6}, grad[6] = {1, 0, 1, 0, 1, 1};
};

}  // namespace

TEST_CASE("abort: of a communicator ends the step of an optimizer that was made from it",
          "[unit][comm][tsan]") {
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
      if (r == 1) muonrt_comm_abort(rank.comm, MUONRT_ERROR_IO, "the data has ended");
      status[r] = rank.step();
      message[r] = muonrt_last_error();
      ++ended;
      while (ended < kRanks) std::this_thread::yield();  // not by destroying what it waits for
    });
  }
  for (std::thread& t : ranks) t.join();
  muonrt_thread_group_destroy(group);
  for (int r = 0; r < kRanks; ++r) {
    INFO(message[r]);
    CHECK(status[r] == MUONRT_ERROR_IO);
    CHECK(message[r].find("the data has ended") != std::string::npos);
  }
}

TEST_CASE("abort: an optimizer that is gone is told nothing, and its communicator may go first",
          "[unit][comm]") {
  muonrt_thread_group_t* group = nullptr;
  REQUIRE(muonrt_thread_group_create(&group, 1) == MUONRT_OK);
  {
    Rank rank(group, 0);
    rank.make_optimizer();
    muonrt_optimizer_destroy(rank.optimizer);
    rank.make_optimizer();
    REQUIRE(rank.step() == MUONRT_OK);
    muonrt_comm_destroy(rank.comm);
    rank.comm = nullptr;
    CHECK(rank.step() == MUONRT_OK);
  }
  muonrt_thread_group_destroy(group);
  muonrt_comm_t* comm = nullptr;
  REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  CHECK(muonrt_comm_abort(comm, MUONRT_ERROR_ABORTED, nullptr) == MUONRT_OK);
  muonrt_comm_destroy(comm);
}
