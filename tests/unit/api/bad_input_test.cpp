#include "support/faults/bad_input.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <thread>

// Bad input at the C ABI, on exactly one rank of three: all ranks return the same status soon, with
// a message that names rank, parameter or struct, field and value; no buffer changes; the next
// correct call succeeds.

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

/// Runs a case with `bad_rank` as the one that is wrong; fills what each rank saw.
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
        // The step's buffers are those of `good`; `given` brings the arguments.
        if (mine.status == MUONRT_OK) {
          if (given.rebind) muonrt_optimizer_set_grad(optimizer, 1, given.grad_of_1);
          const auto before = std::vector{good.data[0], good.data[1], good.data[2]};
          mine.status = muonrt_optimizer_step(optimizer, given.step_given, &given.report);
          mine.unchanged = before == std::vector{good.data[0], good.data[1], good.data[2]};
        }
        mine.handle_null = true;
      }
      mine.message = muonrt_last_error();
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
        mine.repaired = muonrt_optimizer_step(optimizer, &good.step, &good.report);
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
  INFO(c.says.back() << ", rank " << bad_rank << " wrong");
  const std::vector<Seen> seen = run(c, in_step, bad_rank);
  for (int rank = 0; rank < kRanks; ++rank) {
    const Seen& s = seen[static_cast<size_t>(rank)];
    INFO("rank " << rank << ": " << muonrt_status_name(s.status) << ": " << s.message);
    CHECK(s.status == c.status);
    CHECK(s.message == seen[0].message);
    for (const std::string& part : c.says) CHECK(s.message.find(part) != std::string::npos);
    // Grammar: problem (why it is one); what to do.
    CHECK(s.message.find(';') != std::string::npos);
    // Where ranks disagree the message names the two; else it begins with the one that is wrong.
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

TEST_CASE("bad input: what is wrong on one rank of three at creation ends the call on all",
          "[unit][abi][tsan]") {
  int which = 0;
  for (const BadCase& c : create_cases()) check_case(c, false, which++ % kRanks);
  for (const BadCase& c : setting_cases()) check_case(c, false, which++ % kRanks);
}

TEST_CASE("bad input: every plain setting outside of its range ends the creation on all ranks",
          "[unit][abi]") {
  int which = 0;
  for (const BadCase& c : field_cases()) check_case(c, false, which++ % kRanks);
  CHECK(which > 100);
}

TEST_CASE("bad input: what is wrong on one rank of three in a step votes it down on all",
          "[unit][abi][tsan]") {
  for (const BadCase& c : step_cases()) {
    for (int bad_rank = 0; bad_rank < kRanks; ++bad_rank) check_case(c, true, bad_rank);
  }
}

TEST_CASE("bad input: a null handle is refused by every function that takes one", "[unit][abi]") {
  muonrt_optimizer_t* none = nullptr;
  muonrt_step_t step;
  muonrt_step_init(&step);
  muonrt_state_view_t view;
  muonrt_state_view_init(&view);
  muonrt_counters_t counters;
  muonrt_counters_init(&counters);
  muonrt_group_t group;
  muonrt_group_init(&group, MUONRT_ROLE_MUON);
  int64_t number = 0;
  int32_t small = 0;
  CHECK(muonrt_optimizer_create(&none, nullptr, nullptr, nullptr, 0, nullptr, 0) == kInvalid);
  CHECK(std::string(muonrt_last_error()).find("comm is null") != std::string::npos);
  CHECK(muonrt_optimizer_step(none, &step, nullptr) == kInvalid);
  CHECK(muonrt_optimizer_set_grad(none, 0, nullptr) == kInvalid);
  CHECK(muonrt_optimizer_set_grads(none, nullptr, 0) == kInvalid);
  CHECK(muonrt_optimizer_set_data(none, 0, &small) == kInvalid);
  CHECK(muonrt_optimizer_take_params(none, nullptr, 0) == kInvalid);
  CHECK(muonrt_optimizer_set_group(none, 0, &group) == kInvalid);
  CHECK(muonrt_optimizer_find(none, "w", &number) == kInvalid);
  CHECK(muonrt_optimizer_state(none, 0, 0, &view) == kInvalid);
  CHECK(muonrt_optimizer_state_extents(none, nullptr, 0, &number) == kInvalid);
  CHECK(muonrt_optimizer_save(none, "state", nullptr) == kInvalid);
  CHECK(muonrt_optimizer_save_reserve(none, nullptr, nullptr) == kInvalid);
  CHECK(muonrt_optimizer_save_begin(none, "state", nullptr) == kInvalid);
  CHECK(muonrt_optimizer_save_wait(none) == kInvalid);
  CHECK(muonrt_optimizer_load(none, "state", nullptr) == kInvalid);
  CHECK(muonrt_optimizer_load_notes(none, nullptr, 0, &number) == kInvalid);
  CHECK(muonrt_optimizer_get_step(none, &number) == kInvalid);
  CHECK(muonrt_optimizer_set_step(none, 0) == kInvalid);
  CHECK(muonrt_optimizer_get_updates(none, 0, &number) == kInvalid);
  CHECK(muonrt_optimizer_set_updates(none, 0, 0) == kInvalid);
  CHECK(muonrt_optimizer_describe(none, 0, nullptr, 0, &number) == kInvalid);
  CHECK(muonrt_optimizer_trace(none, 0, nullptr, 0, &number) == kInvalid);
  CHECK(muonrt_optimizer_counters(none, &counters) == kInvalid);
  CHECK(muonrt_comm_rank(&small, nullptr) == kInvalid);
  CHECK(muonrt_comm_size(&small, nullptr) == kInvalid);
  CHECK(muonrt_comm_barrier(nullptr) == kInvalid);
  CHECK(muonrt_comm_create_self(nullptr) == kInvalid);
  muonrt_optimizer_destroy(nullptr);
  muonrt_comm_destroy(nullptr);
  muonrt_thread_group_destroy(nullptr);
}

TEST_CASE("structs: a newer caller's struct with a zero tail is accepted", "[unit][abi]") {
  muonrt_comm_t* comm = nullptr;
  REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  std::vector<float> data(6, 1.0f), grad(6, 0.25f);
  const int64_t shape[2] = {2, 3};
  struct New {
    muonrt_param_t param;
    uint64_t tail[3];
  } param = {};
  muonrt_param_init(&param.param);
  param.param.struct_size = sizeof param;
  param.param.name = "w";
  param.param.ndim = 2;
  param.param.shape = shape;
  param.param.data = data.data();
  param.param.grad = grad.data();
  muonrt_group_t group;
  muonrt_group_init(&group, MUONRT_ROLE_MUON);
  muonrt_optimizer_t* optimizer = nullptr;
  REQUIRE(muonrt_optimizer_create(&optimizer, comm, nullptr, &group, 1, &param.param, 1) ==
          MUONRT_OK);
  muonrt_step_t step;
  muonrt_step_init(&step);
  step.lr = 0.5;
  CHECK(muonrt_optimizer_step(optimizer, &step, nullptr) == MUONRT_OK);
  // The default decay of 0.1 has acted: 1 (1 - 0.5 x 0.1) less an update of rank one, all entries
  // equal: 0.5 x 0.2 sqrt(3) x 0.903537 / sqrt(6).
  CHECK(data[0] == Approx(0.95 - 0.1 * std::sqrt(3.0) * 0.903537 / std::sqrt(6.0)).epsilon(1e-3));
  // All gradients or none: this one is misaligned, so the old one stays bound.
  const void* bad[1] = {reinterpret_cast<const char*>(grad.data()) + 1};
  CHECK(muonrt_optimizer_set_grads(optimizer, bad, 1) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(muonrt_optimizer_step(optimizer, &step, nullptr) == MUONRT_OK);
  muonrt_optimizer_destroy(optimizer);
  muonrt_comm_destroy(comm);
}

TEST_CASE("structs: a report that no step has filled names no rank and no parameter",
          "[unit][abi]") {
  muonrt_report_t report;
  muonrt_report_init(&report);
  CHECK(report.nonfinite_rank == -1);
  CHECK(report.nonfinite_param == -1);
}
