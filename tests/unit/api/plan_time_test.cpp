#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "api/handles.hpp"
#include "model/simulate.hpp"
#include "muonrt/distributed.h"
#include "muonrt/plan.h"
#include "plan/machine/named_profiles.hpp"

using Catch::Matchers::Contains;

namespace {

std::string message() { return muonrt_get_last_error(); }

/// A plan of three matrices whose rows are sharded over four ranks.
struct Planned {
  muonrt_plan_t* plan = nullptr;
  muonrt_status_t status;

  explicit Planned(const muonrt_optimizer_options_t* options = nullptr) {
    const int64_t ranks[1] = {4}, shape[2] = {64, 32};
    const muonrt_placement_t rows[1] = {{MUONRT_PLACEMENT_SHARD, 0, 0}};
    muonrt_mesh_t mesh;
    muonrt_mesh_init(&mesh);
    mesh.ndim = 1;
    mesh.shape = ranks;
    muonrt_layout_t layout;
    muonrt_layout_init(&layout);
    layout.mesh = &mesh;
    layout.placements = rows;
    muonrt_group_t group;
    muonrt_group_init_muon(&group);
    muonrt_param_t params[3];
    const char* const names[3] = {"a", "b", "c"};
    for (int i = 0; i < 3; ++i) {
      muonrt_param_init(&params[i]);
      params[i].name = names[i];
      params[i].ndim = 2;
      params[i].shape = shape;
      params[i].layout = &layout;
      params[i].dtype = MUONRT_DTYPE_F32;
    }
    status = muonrt_plan_create(&plan, 4, options, &group, 1, params, 3);
    INFO(message());
    REQUIRE(status == MUONRT_OK);
  }
  Planned(const Planned&) = delete;
  ~Planned() { muonrt_plan_destroy(plan); }

  muonrt_plan_time_t time(const std::string& machine) const {
    muonrt_plan_time_t out;
    muonrt_plan_time_init(&out);
    CHECK(muonrt_plan_get_time(&out, plan, machine.c_str()) == MUONRT_OK);
    return out;
  }
};

std::string host_json() {
  for (const muonrt::NamedProfile& p : muonrt::named_profiles())
    if (p.name == std::string("host")) return p.json;
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

}  // namespace

TEST_CASE("plan time: the numbers are those that `plan --machine` prints", "[unit][api]") {
  const Planned planned;
  const muonrt_plan_time_t time = planned.time("host");
  const muonrt::Simulation step = muonrt::simulate(muonrt::api::unwrap(planned.plan, "test"),
                                                   muonrt::find_profile("host", "test"));
  const muonrt::RankTimes& rank = step.critical;
  CHECK((time.step_seconds == step.seconds && time.rank == rank.rank));
  CHECK((time.products_seconds == rank.products && time.products_seconds > 0));
  CHECK((time.local_seconds == rank.local && time.exposed_seconds == rank.exposed));
  CHECK((time.exchange_seconds == rank.exchange && time.launch_seconds == rank.launch));
  CHECK(time.products_seconds + time.local_seconds + time.exposed_seconds + time.launch_seconds <=
        time.step_seconds * (1 + 1e-9));
  muonrt_plan_rank_t info;
  muonrt_plan_rank_init(&info);
  REQUIRE(muonrt_plan_get_rank(&info, planned.plan, time.rank) == MUONRT_OK);
  CHECK((time.sent_bytes == info.sent_bytes && time.received_bytes == info.received_bytes));
  CHECK((time.messages == info.messages && time.simulated_ranks == 4));
}

TEST_CASE("plan time: a profile is a text, and each of its numbers counts", "[unit][api]") {
  const Planned planned;
  const muonrt_plan_time_t time = planned.time("host");
  CHECK(planned.time(host_json()).step_seconds == time.step_seconds);
  CHECK((time.fits == 1 && time.device_bytes == 12884901888));
  CHECK(planned.time(replaced(host_json(), "12884901888", "1000")).fits == 0);
  const std::string size = replaced(host_json(), "12884901888", "\"12GiB\"");
  CHECK(planned.time(size).device_bytes == 12884901888);
  // For the products of 32 x 64 matrices, the model uses the first row of the table: 34 and 31
  // GFLOP/s.
  const std::string twice = replaced(replaced(host_json(), "34e9", "68e9"), "31e9", "62e9");
  CHECK(planned.time(twice).products_seconds == Approx(time.products_seconds / 2));
}

TEST_CASE("plan time: bad arguments are named, and the struct does not change", "[unit][api]") {
  const Planned planned;
  muonrt_plan_time_t out;
  muonrt_plan_time_init(&out);
  const auto error = [&](const std::string& machine) {
    CHECK(muonrt_plan_get_time(&out, planned.plan, machine.c_str()) ==
          MUONRT_ERROR_INVALID_ARGUMENT);
    return message();
  };
  CHECK_THAT(error("h101"), Contains("machine is 'h101'") && Contains("mi250"));
  CHECK_THAT(error("h100"), Contains("h100 is a GPU, but the plan is that of the host"));
  CHECK_THAT(error(replaced(host_json(), "\"pass_bytes\"", "\"pas_bytes\"")),
             Contains("pass_bytes is missing"));
  CHECK_THAT(
      error(replaced(host_json(), "12884901888", "\"12Gx\"")),
      Contains("memory_bytes: value is not a number; write one, or a size such as \"80GiB\""));
  CHECK(muonrt_plan_get_time(&out, planned.plan, "{") == MUONRT_ERROR_CORRUPT);
  CHECK(muonrt_plan_get_time(&out, planned.plan, nullptr) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(muonrt_plan_get_time(&out, nullptr, "host") == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(muonrt_plan_get_time(nullptr, planned.plan, "host") == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK((out.step_seconds == 0 && out.simulated_ranks == 0));
  std::memset(&out, 0, sizeof out);
  CHECK_THAT(error("host"), Contains("struct_size is 0"));
}

TEST_CASE("plan time: the time of the caller's functions is unknown", "[unit][api]") {
  muonrt_distributed_config_t functions;
  muonrt_distributed_config_init(&functions);
  functions.assign = [](void*, int64_t, const muonrt_assign_info_t*, int32_t* owner) {
    *owner = 0;
    return 0;
  };
  functions.gather = [](auto...) { return 0; };
  functions.redistribute = [](auto...) { return 0; };
  muonrt_optimizer_options_t options;
  muonrt_optimizer_options_init(&options);
  muonrt_tuning_options_t tuning;
  muonrt_tuning_options_init(&tuning);
  tuning.distributed = &functions;
  options.tuning = &tuning;
  const Planned planned(&options);
  muonrt_plan_time_t time;
  muonrt_plan_time_init(&time);
  CHECK(muonrt_plan_get_time(&time, planned.plan, "host") == MUONRT_ERROR_NOT_SUPPORTED);
  CHECK_THAT(message(), Contains("gather and redistribute"));
}
