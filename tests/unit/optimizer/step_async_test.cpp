// Tests steps that run while the caller continues: other calls during a step, and how errors are
// reported.

#include "muonrt/step_async.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <future>
#include <vector>

#include "api/handles.hpp"
#include "muonrt/checkpoint.h"
#include "muonrt/inspect.h"
#include "muonrt/state.h"
#include "optimizer/agreement.hpp"
#include "support/folder.hpp"
#include "support/one_matrix.hpp"
#include "support/rank_check.hpp"
#include "support/thread_ranks.hpp"

using namespace muonrt;

namespace {

constexpr int kRanks = 2;
constexpr int64_t kTimeoutMs = 20000;

void ok(muonrt_status_t status) {
  if (status != MUONRT_OK) throw Error(static_cast<Status>(status), muonrt_get_last_error());
}
bool error_has(const std::string& text) {
  return std::string(muonrt_get_last_error()).find(text) != std::string::npos;
}

/// An optimizer on one rank. Its first step is already committed, because the first step would wait
/// for its checks.
struct Rank : OneMatrix {
  explicit Rank(muonrt_comm_t* comm) {
    ok(muonrt_comm_set_timeout(comm, kTimeoutMs));
    muonrt_optimizer_options_t options;
    muonrt_optimizer_options_init(&options);
    options.timeout_ms = kTimeoutMs;
    ok(create(comm, &options));
    ok(step());
  }
  muonrt_status_t step_async(double lr = 0.1) {
    muonrt_step_args_t args;
    muonrt_step_args_init(&args);
    args.lr = lr;
    return muonrt_optimizer_step_async(optimizer, &args);
  }
  muonrt_status_t wait() { return muonrt_optimizer_wait(nullptr, optimizer); }
  int64_t steps() const {
    int64_t out = 0;
    ok(muonrt_optimizer_get_step(&out, optimizer));
    return out;
  }
  std::vector<float> weights() const { return {data, data + 6}; }
};

/// Runs `body(rank, number of the rank, communicator)` on both ranks.
void on_both(const std::function<void(Rank&, int, muonrt_comm_t*)>& body) {
  muonrt_thread_group group{ThreadGroup(kRanks)};
  const auto errors = transport_test::on_ranks(kRanks, [&](int number) {
    muonrt_comm_t* comm = nullptr;
    ok(muonrt_comm_create_thread(&comm, &group, number));
    {
      Rank rank(comm);
      body(rank, number, comm);
    }
    muonrt_comm_destroy(comm);
  });
  CHECK(transport_test::text_of(errors) == "");
}

/// Returns the weights of one rank after blocking steps.
std::vector<float> weights_after(int steps) {
  muonrt_comm_t* comm = nullptr;
  ok(muonrt_comm_create_self(&comm));
  Rank rank(comm);
  for (int i = 1; i < steps; ++i) ok(rank.step());
  muonrt_comm_destroy(comm);
  return rank.weights();
}

}  // namespace

TEST_CASE(
    "step async: it returns before the other rank has begun its step, and other calls are rejected "
    "until it is complete",
    "[unit][optimizer][tsan]") {
  std::promise<void> has_returned;
  std::vector<float> seen[kRanks];
  on_both([&](Rank& rank, int number, muonrt_comm_t*) {
    muonrt_optimizer_t* const o = rank.optimizer;
    if (number == 0) {
      ok(rank.step_async());
      const float gradient[6] = {};
      const void* const gradients[] = {gradient};
      muonrt_group_t group;
      muonrt_group_init_muon(&group);
      int64_t n = 0;
      const muonrt_status_t rejected[] = {
          muonrt_optimizer_set_grad(o, 0, gradient),
          muonrt_optimizer_set_grads(o, gradients, 1),
          muonrt_optimizer_set_data(o, 0, rank.data),
          muonrt_optimizer_set_group(o, 0, &group),
          muonrt_optimizer_set_step(o, 7),
          muonrt_optimizer_set_update_count(o, 0, 7),
          muonrt_optimizer_reset_masters(o, nullptr, 0),
          muonrt_optimizer_get_state_shards(nullptr, 0, &n, o),
          muonrt_optimizer_get_trace(nullptr, 0, &n, o, MUONRT_FORMAT_TEXT)};
      for (const muonrt_status_t status : rejected)
        RANK_CHECK(status == MUONRT_ERROR_INVALID_STATE && error_has("a step is in flight"));
      RANK_CHECK(rank.steps() == 1);
      has_returned.set_value();
      muonrt_step_report_t report;
      muonrt_step_report_init(&report);
      report.struct_size = 3;
      RANK_CHECK(muonrt_optimizer_wait(&report, o) == MUONRT_ERROR_INVALID_ARGUMENT);
      muonrt_step_report_init(&report);
      ok(muonrt_optimizer_wait(&report, o));
      RANK_CHECK(report.step == 2 && report.orthogonalized == 1 && !report.skipped);
      RANK_CHECK(rank.wait() == MUONRT_ERROR_INVALID_STATE && error_has("no step is in flight"));
    } else {
      has_returned.get_future().wait();
      ok(rank.step());
    }
    // The second call completes the step of the first call, and the destructor completes the step
    // of the second.
    ok(rank.step_async());
    ok(rank.step_async());
    rank.destroy();
    seen[number] = rank.weights();
  });
  for (const std::vector<float>& weights : seen) CHECK(weights == weights_after(4));
}

TEST_CASE("step async: the caller may free the arguments after the call", "[unit][optimizer]") {
  muonrt_comm_t* comm = nullptr;
  ok(muonrt_comm_create_self(&comm));
  Rank rank(comm), same(comm);
  for (Rank* each : {&rank, &same}) {
    auto values = std::make_unique<float[]>(2);
    auto inactive = std::make_unique<int64_t[]>(1);
    auto rates = std::make_unique<double[]>(1);
    values[1] = 0.5f;
    rates[0] = 0.25;
    muonrt_step_args_t args;
    muonrt_step_args_init(&args);
    args.found_inf = &values[0];
    args.grad_multiplier = &values[1];
    args.inactive_params = inactive.get();
    args.group_lrs = rates.get();
    args.n_group_lrs = 1;
    if (each == &same) {
      ok(muonrt_optimizer_step(nullptr, each->optimizer, &args));
      continue;
    }
    ok(muonrt_optimizer_step_async(each->optimizer, &args));
    values[0] = NAN;
    values[1] = NAN;
    inactive[0] = 99;
    rates[0] = NAN;
  }
  CHECK(rank.wait() == MUONRT_OK);
  CHECK(rank.weights() == same.weights());
  muonrt_comm_destroy(comm);
}

TEST_CASE("step async: every rank returns the error of a rejected step, once",
          "[unit][optimizer][tsan]") {
  on_both([](Rank& rank, int number, muonrt_comm_t*) {
    const std::vector<float> before = rank.weights();
    const double lr = number == 1 ? NAN : 0.1;
    ok(rank.step_async(lr));
    RANK_CHECK(rank.wait() == MUONRT_ERROR_INVALID_ARGUMENT && error_has("rank 1: "));
    ok(rank.step_async(lr));
    RANK_CHECK(rank.step() == MUONRT_ERROR_INVALID_ARGUMENT && error_has("rank 1: "));
    RANK_CHECK(rank.weights() == before && rank.steps() == 1);
    if (number == 0) rank.grad[0] = NAN;
    ok(rank.step_async());
    RANK_CHECK(rank.wait() == MUONRT_SKIPPED && error_has("param 'w'"));
    RANK_CHECK(rank.weights() == before && rank.steps() == 1);
    rank.grad[0] = 1.0f;
    ok(rank.step_async());
    ok(rank.wait());
    RANK_CHECK(rank.steps() == 2);
  });
}

TEST_CASE("step async: an abort ends a step in flight, and nothing is committed",
          "[unit][optimizer][tsan]") {
  std::promise<void> has_ended;
  on_both([&](Rank& rank, int number, muonrt_comm_t* comm) {
    // This rank does not take part in the step.
    if (number == 1) return has_ended.get_future().wait();
    const std::vector<float> before = rank.weights();
    ok(rank.step_async());
    ok(muonrt_comm_abort(comm, MUONRT_ERROR_ABORTED, "stop"));
    const muonrt_status_t status = rank.wait();
    has_ended.set_value();
    RANK_CHECK(status == MUONRT_ERROR_ABORTED || status == MUONRT_ERROR_UNDECIDED);
    RANK_CHECK(rank.weights() == before);
    RANK_CHECK(rank.wait() == MUONRT_ERROR_INVALID_STATE && error_has("unusable"));
    RANK_CHECK(rank.step_async() == MUONRT_ERROR_INVALID_STATE && error_has("unusable"));
  });
}

TEST_CASE("step async: a save completes the step, and a step that collects statistics is complete",
          "[unit][optimizer]") {
  const test_support::Folder folder;
  muonrt_comm_t* comm = nullptr;
  ok(muonrt_comm_create_self(&comm));
  Rank rank(comm);
  ok(rank.step_async());
  ok(muonrt_optimizer_save(rank.optimizer, folder.path().c_str(), nullptr));
  CHECK(rank.steps() == 2);
  CHECK(rank.weights() == weights_after(2));

  OneMatrix watched;
  muonrt_optimizer_options_t options;
  muonrt_debug_options_t debug;
  muonrt_optimizer_options_init(&options);
  muonrt_debug_options_init(&debug);
  debug.health_every = 1;
  options.debug = &debug;
  ok(watched.create(comm, &options));
  muonrt_step_args_t args;
  muonrt_step_args_init(&args);
  args.lr = 0.1;
  ok(muonrt_optimizer_step_async(watched.optimizer, &args));
  CHECK(std::vector<float>(watched.data, watched.data + 6) == weights_after(1));
  muonrt_step_report_t report;
  muonrt_step_report_init(&report);
  ok(muonrt_optimizer_wait(&report, watched.optimizer));
  CHECK((report.has_health == 1 && report.step == 1));
  muonrt_comm_destroy(comm);
}
