// Tests copying state from the surviving ranks to a new optimizer on different ranks and a
// different mesh.

#include "state/copy/copy_state.hpp"

#include <catch2/catch.hpp>
#include <mutex>
#include <set>

#include "comm/host_comm.hpp"
#include "muonrt/recover.h"
#include "support/attempts.hpp"
#include "support/check_same.hpp"
#include "support/checkpoints.hpp"
#include "support/one_matrix.hpp"
#include "support/rank_check.hpp"

using namespace muonrt;

namespace {

constexpr Placement kRows{PlacementKind::kShard, 0, 1}, kColumns{PlacementKind::kShard, 1, 1},
    kSame{PlacementKind::kReplicate, 0, 1};
constexpr int kStop = 2, kSteps = 4;

/// Returns a case with one parameter of each kind.
/// @param owners  Whether gradients are partial sums over the first dimension of the mesh, so that
///     owners hold state.
world::Case make(std::vector<int64_t> mesh, const std::vector<Placement>& placements,
                 bool owners = false) {
  world::Case c = world::on_mesh(std::move(mesh));
  c.settings.groups = world::default_groups();
  c.settings.seed = 77;
  c.settings.chunk_bytes = 600;
  c.steps = kSteps;
  c.inactive_params = {{}, {1, 4}, {0}, {}};
  const auto add = [&](const char* name, std::vector<int64_t> shape, DType dtype = DType::kF32,
                       MasterKind masters = MasterKind::kAuto) -> world::Param& {
    std::vector<Placement> own = placements;
    for (Placement& p : own)
      if (shape.size() == 1 && p.kind == PlacementKind::kShard && p.tensor_dim > 0) p = kSame;
    world::Param& param = world::add(c, name, std::move(shape), own);
    param.dtype = dtype;
    param.master_kind = masters;
    return param;
  };
  add("w", {12, 10});
  add("owned", {10, 7}, DType::kBF16, MasterKind::kOwned);
  add("remainder", {9, 8}, DType::kBF16, MasterKind::kRemainder);
  add("stochastic", {7, 9}, DType::kBF16, MasterKind::kStochastic);
  add("bias", {11});
  add("half_bias", {13}, DType::kBF16, MasterKind::kRemainder);
  if (!owners) return c;
  c.settings.groups[0].normuon_axis = NormuonAxis::kLonger;
  for (world::Param& p : c.params) {
    p.grad_placements = p.placements;
    p.grad_placements[0] = {PlacementKind::kPartial, 0, 1};
    p.partial_grads = static_cast<int>(c.mesh[0]);
  }
  return c;
}

struct Row {
  const char* what;
  world::Case from;
  std::set<int> dead;  // dead ranks of `from`
  world::Case to;
  bool reversed = false;  // whether the survivors are in reverse order in `to`
};

std::vector<Row> rows() {
  const auto replicated = [](int world) { return make({world}, {kSame}); };
  return {{"rank 3 of two replicas", make({2, 2}, {kSame, kRows}), {3}, make({3}, {kRows})},
          {"its order changes", make({2, 2}, {kRows, kSame}), {3}, make({3}, {kColumns}), true},
          {"FSDP, TP and replicas",
           make({2, 2, 2}, {kSame, kRows, kColumns}),
           {1, 6},
           make({3, 2}, {kColumns, kRows})},
          {"one is left", replicated(4), {0, 1, 2}, make({1}, {kSame})},
          {"new ranks", make({2}, {kRows}), {}, make({2, 2}, {kRows, kColumns})},
          {"a new rank and one that has ended",
           make({2, 2}, {kSame, kRows}),
           {0},
           make({2, 2}, {kColumns, kSame}),
           true},
          {"state of owners",
           make({2, 2}, {kSame, kRows}, true),
           {},
           make({2, 2}, {kSame, kColumns}, true),
           true},
          {"the same mesh", make({2, 2}, {kSame, kRows}), {}, make({2, 2}, {kSame, kRows})}};
}

/// Runs the first steps of `from`, after which the dead ranks exit. The remaining ranks then copy
/// the state to `to` and call `script(new rank, comm, old rank or null)`.
world::Tensors moved(const Row& row,
                     const std::function<void(world::Rank&, Comm&, world::Rank*)>& script) {
  const int world = std::max(row.from.world, row.to.world + static_cast<int>(row.dead.size()));
  ThreadGroup first(row.from.world), survivors(row.from.world - static_cast<int>(row.dead.size())),
      second(row.to.world);
  world::Tensors out;
  std::vector<std::vector<bool>> seen;
  std::mutex mutex;
  world::on_ranks(world, [&](Comm& process) {
    const int number = process.rank();
    const auto alive = [&](int r) { return r < row.from.world && !row.dead.contains(r); };
    std::optional<HostComm> comm;
    std::optional<world::Rank> old;
    if (number < row.from.world) {
      comm.emplace(first.transport(number));
      comm->set_timeout_ms(60000);
      old.emplace(row.from, *comm);
      resumed::run_steps(*old, 0, kStop);
    }
    std::vector<char> all(static_cast<size_t>(world));
    process.allgather("", all.data(), 1);  // waits until all ranks have completed the steps
    if (old) {
      if (row.dead.contains(number)) {
        comm->transport().abort_with_duplicates(Status::kAborted, "it dies");
        return;
      }
      if (!row.dead.empty()) {
        const world::Ended ended = world::attempt(*old, kStop);
        if (ended.status == Status::kOk) throw Error(Status::kInternal, "the step has not failed");
        int place = 0;
        for (int r = 0; r < number; ++r) place += alive(r);
        HostComm left(survivors.transport(place));
        left.set_timeout_ms(60000);
        old->optimizer().recover(left, SurvivorPolicy::kAny);
      }
    }
    int place = 0;
    for (int r = 0; r < number; ++r) place += !row.dead.contains(r);
    if (place >= row.to.world) return;
    HostComm again(second.transport(row.reversed ? row.to.world - 1 - place : place));
    again.set_timeout_ms(60000);
    world::Rank rank(row.to, again);
    script(rank, again, old ? &*old : nullptr);
    const std::lock_guard lock(mutex);
    if (!rank.add_to(out, seen)) throw Error(Status::kInternal, "replicas differ");
  });
  return out;
}

void copy(world::Rank& to, world::Rank* from) {
  copy_state(to.optimizer(), from ? &from->optimizer() : nullptr);
}

}  // namespace

TEST_CASE("copy_state: continuing on other ranks gives the bits of a save and a load",
          "[bits][state]") {
  for (const Row& row : rows()) {
    INFO(row.what);
    world::Outcome outcome;
    outcome.tensors = moved(row, [](world::Rank& rank, Comm&, world::Rank* old) {
      copy(rank, old);
      RANK_CHECK(rank.optimizer().steps() == kStop);
      RANK_CHECK(rank.optimizer().updates(1) == kStop - 1);
      resumed::run_steps(rank, kStop, kSteps);
    });
    const world::Outcome expected = resumed::moved(row.from, row.to, kStop);
    world::check_same(row.to, outcome, expected.tensors);
    CHECK((outcome.tensors.remainder == expected.tensors.remainder));
  }
}

TEST_CASE("copy_state: elements that no rank holds are named, and nothing changes",
          "[unit][state]") {
  const Row row = {"", make({4}, {kRows}), {3}, make({3}, {kRows})};
  moved(row, [](world::Rank& rank, Comm&, world::Rank* old) {
    const world::Tensors before = rank.tensors();
    const std::string problem = resumed::problem_of([&] { copy(rank, old); });
    // The lost rank 3 held rows 9 to 11, and rank 2 is the first rank that needs one of these rows.
    RANK_CHECK(problem.find("INVALID_ARGUMENT rank 2: copy_state: param 'w': element 90 of its "
                            "param is lost") != std::string::npos);
    RANK_CHECK(rank.tensors() == before);
    RANK_CHECK(rank.optimizer().steps() == 0);
    StepReport report;
    RANK_CHECK(rank.step(0, report) == Status::kOk);
  });
}

TEST_CASE("copy_state: optimizers that do not belong together are rejected on all ranks",
          "[unit][state]") {
  const Row equal = {"", make({2}, {kRows}), {}, make({2}, {kRows})};
  struct Rejected {
    std::string words;
    std::function<void(Row&)> change;
    std::function<Optimizer*(Optimizer& old, int rank)> from = [](Optimizer& old, int) {
      return &old;
    };
  };
  const std::vector<Rejected> all = {
      {"INVALID_ARGUMENT copy_state: from is NULL on all ranks", [](Row&) {},
       [](Optimizer&, int) -> Optimizer* { return nullptr; }},
      {"MISMATCH copy_state: from has 2 committed steps on rank 0, but 5 on rank 1", [](Row&) {},
       [](Optimizer& old, int rank) {
         if (rank == 1) old.set_steps(5);
         return &old;
       }},
      {"MISMATCH copy_state: settings, seed or update counts of from differ between ranks 0 and 1",
       [](Row&) {},
       [](Optimizer& old, int rank) {
         old.set_updates(2, rank);
         return &old;
       }},
      {"param 'w': element 60 of its param is lost", [](Row&) {},
       [](Optimizer& old, int rank) { return rank == 1 ? nullptr : &old; }},
      {"param 'new' is not in from", [](Row& r) { r.to.params[2].name = "new"; }},
      {"param 'bias' of from is not in to",
       [](Row& r) { r.to.params.erase(r.to.params.begin() + 4), r.to.inactive_params.clear(); }},
      {"param 'w': its shape is [12, 10] in from, but [12, 11] in to",
       [](Row& r) {
         r.to.params[0].shape = {12, 11};
       }},
      {"param 'owned': its state is (master F32, momentum F32) in from, but (momentum F32, "
       "remainder U16) in to",
       [](Row& r) { r.to.params[1].master_kind = MasterKind::kRemainder; }},
      {"param 'w': its momentum_kind is ", [](Row& r) {
         r.to.settings.groups[0].momentum_kind =
             r.from.settings.groups[0].momentum_kind == MomentumKind::kEma
                 ? MomentumKind::kHeavyBall
                 : MomentumKind::kEma;
       }}};
  for (const Rejected& rejected : all) {
    INFO(rejected.words);
    Row row = equal;
    rejected.change(row);
    moved(row, [&](world::Rank& rank, Comm& comm, world::Rank* old) {
      const world::Tensors before = rank.tensors();
      Optimizer* const from = rejected.from(old->optimizer(), comm.rank());
      const std::string problem = resumed::problem_of([&] { copy_state(rank.optimizer(), from); });
      if (problem.find(rejected.words) == std::string::npos)
        throw Error(Status::kInternal, problem);
      RANK_CHECK(rank.tensors() == before);
      rank.optimizer().require_usable();
    });
  }
}

TEST_CASE("copy_state: memory that both optimizers use is rejected unless it has equal elements",
          "[unit][state]") {
  const bool apart = GENERATE(true, false);
  const Row row = {"", make({2}, {kRows}), {}, make({2}, {apart ? kRows : kColumns})};
  moved(row, [&](world::Rank& rank, Comm&, world::Rank* old) {
    rank.optimizer().set_data(0, old->data(0).data());
    const std::string problem = resumed::problem_of([&] { copy(rank, old); });
    if (apart) {
      RANK_CHECK(problem == "no error");
    } else {
      RANK_CHECK(problem.find("param 'w': its param in to overlaps") != std::string::npos);
    }
    rank.optimizer().set_data(0, rank.data(0).data());
    rank.data(0) = old->data(0);
  });
}

TEST_CASE("copy_state: the C function checks its arguments and copies", "[unit][state]") {
  muonrt_comm_t* comm = nullptr;
  REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  OneMatrix old, made;
  REQUIRE(old.create(comm) == MUONRT_OK);
  REQUIRE(old.step() == MUONRT_OK);
  REQUIRE(made.create(comm) == MUONRT_OK);
  CHECK(muonrt_optimizer_copy_state(nullptr, old.optimizer) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Catch::Contains("to is NULL"));
  CHECK(muonrt_optimizer_copy_state(made.optimizer, nullptr) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Catch::Contains("from is NULL on all ranks"));
  CHECK(muonrt_optimizer_copy_state(made.optimizer, made.optimizer) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Catch::Contains("from is the same optimizer as to"));
  REQUIRE(muonrt_optimizer_copy_state(made.optimizer, old.optimizer) == MUONRT_OK);
  CHECK(std::equal(old.data, old.data + 6, made.data));
  REQUIRE(old.step() == MUONRT_OK);
  REQUIRE(made.step() == MUONRT_OK);
  CHECK(std::equal(old.data, old.data + 6, made.data));
  muonrt_comm_destroy(comm);
}
