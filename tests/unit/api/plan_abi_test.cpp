#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "muonrt/muonrt.hpp"
#include "muonrt/plan.h"

namespace {

constexpr int kWorld = 4;

/// The arguments for two matrices and a vector that are sharded by rows over four ranks. Buffers
/// are optional.
struct Trainer {
  std::vector<muonrt_group_t> groups = {muonrt::muon_group(), muonrt::adamw_group()};
  std::vector<muonrt_param_t> params;
  muonrt_placement_t rows[1] = {{MUONRT_PLACEMENT_SHARD, 0, 0}};
  const int64_t ranks[1] = {kWorld}, shapes[3][2] = {{64, 32}, {40, 24}, {10, 0}};
  muonrt_mesh_t mesh;
  muonrt_layout_t layout = muonrt::layout();
  std::vector<std::vector<float>> memory;

  explicit Trainer(muonrt_dtype_t dtype = MUONRT_DTYPE_F32) {
    muonrt_mesh_init(&mesh);
    mesh.ndim = 1;
    mesh.shape = ranks;
    layout.mesh = &mesh;
    layout.placements = rows;
    for (int i = 0; i < 3; ++i) {
      muonrt_param_t& p = params.emplace_back(muonrt::param());
      p.name = i == 0 ? "a" : i == 1 ? "b" : "bias";
      p.group = i == 2;
      p.ndim = i == 2 ? 1 : 2;
      p.shape = shapes[i];
      p.layout = &layout;
      p.dtype = dtype;
    }
  }
  void add_buffers() {
    for (muonrt_param_t& p : params) {
      memory.emplace_back(64 * 32);
      p.data = memory.back().data();
    }
  }
  muonrt::Plan plan(const muonrt_optimizer_options_t& options = muonrt::options()) const {
    return {kWorld, options, groups, params};
  }
};

std::string message() { return muonrt_get_last_error(); }

}  // namespace

TEST_CASE("plan: a plan without ranks is that of the optimizer on every rank", "[unit][api]") {
  for (const int32_t period : {1, 3}) {
    Trainer planned;
    planned.groups[0].block_period = period;
    planned.groups[0].block_rows = 2;
    const muonrt::Plan plan = planned.plan();
    const std::string json = plan.describe(MUONRT_FORMAT_JSON), text = plan.describe();
    muonrt::ThreadGroup group(kWorld);
    struct Found {
      muonrt_memory_t memory;
      std::string json, text;
      int64_t total = 0;
    } found[kWorld];
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kWorld; ++rank) {
      threads.emplace_back([&, rank] {
        Trainer trainer;
        trainer.groups = planned.groups;
        trainer.add_buffers();
        Found& out = found[rank];
        std::optional<muonrt::Plan> live;
        {
          const muonrt::Optimizer optimizer(group.comm(rank), muonrt::options(), trainer.groups,
                                            trainer.params);
          out.memory = optimizer.memory();
          live.emplace(optimizer.get());
        }
        // The plan must remain valid after the optimizer is destroyed.
        out.json = live->describe(MUONRT_FORMAT_JSON);
        out.text = live->describe();
        out.total = live->rank(rank).total_bytes;
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int rank = 0; rank < kWorld; ++rank) {
      const muonrt_plan_rank_t info = plan.rank(rank);
      const muonrt_memory_t& memory = found[rank].memory;
      CHECK(info.message_bytes == memory.message_bytes + memory.block_message_bytes);
      CHECK(info.staged_bytes == memory.staged_bytes + memory.block_staged_bytes);
      CHECK(info.scratch_bytes == memory.scratch_bytes + memory.block_scratch_bytes);
      CHECK(info.check_bytes == memory.check_bytes);
      CHECK(info.moment_bytes == memory.state_bytes);
      CHECK(info.total_bytes == found[rank].total);
      CHECK(found[rank].json == json);
      CHECK(found[rank].text == text);
    }
  }
}

TEST_CASE("plan: memory is counted by kind, each element once", "[unit][api]") {
  // Rank 0 has 16 x 32 and 10 x 24 elements of the matrices and 3 elements of the vector.
  constexpr int64_t kMuon = 16 * 32 + 10 * 24, kAdamW = 3, kAll = kMuon + kAdamW;
  const struct {
    muonrt_dtype_t dtype, grad_dtype;
    int32_t master_kind;
    int64_t params, grads, masters;
  } rows[] = {{MUONRT_DTYPE_F32, 0, MUONRT_MASTER_AUTO, 4, 4, 0},
              {MUONRT_DTYPE_BF16, 0, MUONRT_MASTER_AUTO, 2, 2, 4},
              {MUONRT_DTYPE_BF16, MUONRT_DTYPE_F32, MUONRT_MASTER_CALLER, 2, 4, 4},
              {MUONRT_DTYPE_BF16, 0, MUONRT_MASTER_REMAINDER, 2, 2, 2},
              {MUONRT_DTYPE_BF16, 0, MUONRT_MASTER_NONE, 2, 2, 0}};
  for (const auto& row : rows) {
    CAPTURE(row.dtype, row.grad_dtype, row.master_kind);
    Trainer trainer(row.dtype);
    for (muonrt_param_t& p : trainer.params) {
      p.grad_dtype = row.grad_dtype;
      p.master_kind = row.master_kind;
    }
    const muonrt_plan_rank_t r = trainer.plan().rank(0);
    CHECK(r.param_bytes == kAll * row.params);
    CHECK(r.grad_bytes == kAll * row.grads);
    CHECK(r.master_bytes == kAll * row.masters);
    CHECK(r.moment_bytes == kMuon * 4 + kAdamW * 8);
    CHECK(r.total_bytes == r.param_bytes + r.grad_bytes + r.master_bytes + r.moment_bytes +
                               r.message_bytes + r.staged_bytes + r.scratch_bytes + r.check_bytes);
  }
}

TEST_CASE("plan: the summary adds up over the ranks", "[unit][api]") {
  const muonrt::Plan plan = Trainer().plan();
  const muonrt_plan_summary_t s = plan.summary();
  CHECK((s.world == kWorld && s.params == 3 && s.muon_params == 2 && s.matrices == 2));
  CHECK((s.elements == 64 * 32 + 40 * 24 + 10 && s.muon_elements == 64 * 32 + 40 * 24));
  // Three of the four shards of each matrix are sent to the owner in bf16, and their updates are
  // sent back.
  CHECK(s.moved_bytes == 2 * 2 * (64 * 32 + 40 * 24) * 3 / 4);
  int64_t matrices = 0, sent = 0, received = 0, most = 0;
  double busiest = 0;
  for (int r = 0; r < kWorld; ++r) {
    const muonrt_plan_rank_t rank = plan.rank(r);
    CHECK(rank.rank == r);
    matrices += rank.matrices;
    sent += rank.sent_bytes;
    received += rank.received_bytes;
    busiest = std::max(busiest, rank.cost);
    most = std::max(most, rank.total_bytes);
  }
  CHECK((matrices == s.matrices && sent == s.moved_bytes && received == sent));
  CHECK((busiest == s.makespan && s.lower_bound > 0 && s.lower_bound <= s.makespan));
  CHECK(plan.rank(s.largest_rank).total_bytes == most);
  auto options = muonrt::options();
  options.device = MUONRT_DEVICE_CUDA;  // a plan for CUDA needs no GPU
  const int64_t gpu_bytes = Trainer().plan(options).rank(0).scratch_bytes;
  options.device = MUONRT_DEVICE_HOST;
  auto tuning = muonrt::tuning_options();
  tuning.iteration_dtype = MUONRT_DTYPE_F32;  // the default depends on the processor
  options.tuning = &tuning;
  CHECK(Trainer().plan(options).rank(0).scratch_bytes > gpu_bytes);
}

TEST_CASE("plan: bad arguments are named", "[unit][api]") {
  Trainer t;
  muonrt_plan_t* handle = nullptr;
  const auto create = [&](muonrt_plan_t** to, int32_t world) {
    return muonrt_plan_create(to, world, nullptr, t.groups.data(), 2, t.params.data(), 3);
  };
  constexpr auto kInvalid = MUONRT_ERROR_INVALID_ARGUMENT;
  CHECK((create(nullptr, kWorld) == kInvalid && message().find("plan is NULL") != message().npos));
  for (const int32_t world : {0, -1, (1 << 24) + 1}) {
    CHECK(create(&handle, world) == kInvalid);
    CHECK_THAT(message(), Catch::Contains("world is " + std::to_string(world)));
  }
  CHECK(create(&handle, 2) == kInvalid);  // the mesh has four ranks
  CHECK_THAT(message(), Catch::Contains("param 'a'"));
  CHECK(handle == nullptr);
  t.params[1].name = "a";
  CHECK(create(&handle, kWorld) == kInvalid);
  CHECK_THAT(message(), Catch::Contains("'a'") && Catch::Contains("twice"));
  t.params[1].name = "b";
  REQUIRE(create(&handle, kWorld) == MUONRT_OK);
  muonrt_plan_rank_t rank;
  std::memset(&rank, 0, sizeof rank);
  CHECK(muonrt_plan_get_rank(&rank, handle, 0) == kInvalid);
  CHECK_THAT(message(), Catch::Contains("struct_size is 0"));
  muonrt_plan_rank_init(&rank);
  for (const int32_t bad : {-1, kWorld}) {
    CHECK(muonrt_plan_get_rank(&rank, handle, bad) == kInvalid);
    CHECK_THAT(message(), Catch::Contains("rank is " + std::to_string(bad)) &&
                              Catch::Contains("between 0 and 3"));
  }
  CHECK(muonrt_plan_get_rank(nullptr, handle, 0) == kInvalid);
  CHECK(muonrt_plan_get_summary(nullptr, handle) == kInvalid);
  CHECK(muonrt_plan_describe(nullptr, 0, nullptr, handle, MUONRT_FORMAT_TEXT, -1) == kInvalid);
  CHECK_THAT(message(), Catch::Contains("max_rows is -1"));
  CHECK(muonrt_plan_describe(nullptr, 1, nullptr, handle, MUONRT_FORMAT_TEXT, 0) == kInvalid);
  muonrt_plan_destroy(handle);
  CHECK(muonrt_plan_get_rank(&rank, handle, 0) == kInvalid);
  CHECK_THAT(message(), Catch::Contains("a plan that was destroyed before"));
  CHECK(muonrt_plan_create_from_optimizer(&handle, nullptr) == kInvalid);
  CHECK(handle == nullptr);
}
