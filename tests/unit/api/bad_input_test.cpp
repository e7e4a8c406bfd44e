#include "support/faults/bad_input.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

// Tests invalid input that exactly one of three ranks passes to the C ABI. All ranks must return
// the same status within seconds, with a message that names the rank, the parameter or struct, the
// field and the value. Buffers must not change, and the next valid call must succeed.

using namespace bad_input;

namespace {

struct Seen {
  muonrt_status_t status = -1, repaired = -1;
  std::string message;
  bool unchanged = false, handle_null = false;
  double seconds = 0;
};

muonrt_status_t create(Arguments& a, muonrt_comm_t* comm, muonrt_optimizer_t** out) {
  return muonrt_optimizer_create(a.out_given ? out : nullptr, comm, a.options_given, a.groups_given,
                                 a.n_groups, a.params_given, a.n_params);
}

/// Runs a case in which `bad_rank` passes the invalid input. Returns the result of each rank.
std::vector<Seen> run(const BadCase& c, bool in_step, int bad_rank) {
  std::vector<Seen> seen(kRanks);
  muonrt_thread_group_t* group = nullptr;
  REQUIRE(muonrt_thread_group_create(&group, kRanks) == MUONRT_OK);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      Seen& mine = seen[static_cast<size_t>(rank)];
      muonrt_comm_t* comm = nullptr;
      muonrt_comm_create_thread(&comm, group, rank);
      muonrt_comm_set_timeout(comm, kDeadlineMs);
      Arguments good(rank), given(rank);
      muonrt_optimizer_t* optimizer = nullptr;
      if (rank == bad_rank) c.change(given);
      const auto start = std::chrono::steady_clock::now();
      const auto data_before = std::vector{given.data[0], given.data[1], given.data[2]};
      if (!in_step) {
        optimizer = reinterpret_cast<muonrt_optimizer_t*>(&mine);
        mine.status = create(given, comm, &optimizer);
        mine.handle_null = !given.out_given || optimizer == nullptr;
      } else {
        mine.status = create(good, comm, &optimizer);
        // The optimizer was created with `good`. The step uses the arguments of `given`.
        if (mine.status == MUONRT_OK) {
          if (given.rebind) muonrt_optimizer_set_grad(optimizer, 1, given.grad_of_1);
          const auto before = std::vector{good.data[0], good.data[1], good.data[2]};
          mine.status = muonrt_optimizer_step(&given.report, optimizer, given.args_given);
          mine.unchanged = before == std::vector{good.data[0], good.data[1], good.data[2]};
        }
        mine.handle_null = true;
      }
      mine.message = muonrt_get_last_error();
      mine.seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (!in_step) {
        mine.unchanged = data_before == std::vector{given.data[0], given.data[1], given.data[2]};
        optimizer = nullptr;
        mine.repaired = create(good, comm, &optimizer);
      } else {
        muonrt_optimizer_set_grad(optimizer, 1, good.grad[1].data());
        mine.repaired = MUONRT_OK;
      }
      if (mine.repaired == MUONRT_OK) {
        mine.repaired = muonrt_optimizer_step(&good.report, optimizer, &good.args);
      }
      muonrt_optimizer_destroy(optimizer);
      muonrt_comm_destroy(comm);
    });
  }
  for (std::thread& t : threads) t.join();
  muonrt_thread_group_destroy(group);
  return seen;
}

void check_case(const BadCase& c, bool in_step, int bad_rank) {
  INFO(c.texts.back() << ", invalid on rank " << bad_rank);
  const std::vector<Seen> seen = run(c, in_step, bad_rank);
  for (int rank = 0; rank < kRanks; ++rank) {
    const Seen& s = seen[static_cast<size_t>(rank)];
    INFO("rank " << rank << ": " << muonrt_status_get_name(s.status) << ": " << s.message);
    CHECK(s.status == c.status);
    CHECK(s.message == seen[0].message);
    for (const std::string& part : c.texts) CHECK(s.message.find(part) != std::string::npos);
    // The text after a semicolon in a message states what to do.
    CHECK(s.message.find(';') != std::string::npos);
    // If arguments differ between ranks, the message names two ranks. Otherwise it begins with the
    // rank that passed the invalid input.
    if (c.status == kMismatch) {
      CHECK(s.message.find("on rank 0") != std::string::npos);
    } else {
      CHECK(s.message.rfind("rank " + std::to_string(bad_rank) + ": ", 0) == 0);
    }
    CHECK(s.seconds < 5.0);
    CHECK(s.unchanged);
    CHECK(s.handle_null);
    CHECK(s.repaired == MUONRT_OK);
  }
}

}  // namespace

TEST_CASE("bad input: an invalid argument of one of three ranks ends the creation on all ranks",
          "[unit][abi][tsan]") {
  int which = 0;
  for (const BadCase& c : create_cases()) check_case(c, false, which++ % kRanks);
  for (const BadCase& c : setting_cases()) check_case(c, false, which++ % kRanks);
}

TEST_CASE("bad input: each setting outside its range ends the creation on all ranks",
          "[unit][abi]") {
  int which = 0;
  for (const BadCase& c : field_cases()) check_case(c, false, which++ % kRanks);
  CHECK(unchecked_fields() == std::vector<std::string>{"seed", "device_index"});
}

TEST_CASE("bad input: an invalid argument of one of three ranks rejects the step on all ranks",
          "[unit][abi][tsan]") {
  for (const BadCase& c : step_cases()) {
    for (int bad_rank = 0; bad_rank < kRanks; ++bad_rank) check_case(c, true, bad_rank);
  }
}

TEST_CASE("structs: an initialized report names no rank and no parameter", "[unit][abi]") {
  muonrt_step_report_t report;
  muonrt_step_report_init(&report);
  CHECK(report.nonfinite_rank == -1);
  CHECK(report.nonfinite_param == -1);
}
