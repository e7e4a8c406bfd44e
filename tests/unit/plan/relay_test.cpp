#include "plan/relay.hpp"

#include <rapidcheck.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <set>

#include "plan/report/traffic.hpp"
#include "support/bits_cases.hpp"
#include "support/passing_comm.hpp"
#include "support/rank_check.hpp"
#include "unit/plan/plan_simulation.hpp"

// Returns in two levels: owners return to few ranks, which forward to the equal holders of other
// replicas.

using namespace muonrt;

namespace {

const Placement kR{PlacementKind::kReplicate, 0, 1}, kS{PlacementKind::kShard, 0, 1},
    kP{PlacementKind::kPartial, 0, 1};

ParamSpec spec(std::string name, std::vector<int64_t> mesh, std::vector<int64_t> shape,
               const std::vector<Placement>& placements, Role role = Role::kMuon) {
  ParamSpec out;
  out.name = std::move(name);
  out.role = role;
  out.stack = shape.size() == 3;
  out.layout = Layout::from_placements(std::make_shared<const Mesh>(std::move(mesh)),
                                       std::move(shape), placements, Reading::kLiteral);
  return out;
}

/// Other ranks in a list of regions.
int64_t others(const std::vector<Region>& regions, int rank) {
  std::set<int32_t> out;
  for (const Region& r : regions) out.insert(r.peer);
  out.erase(rank);
  return std::ssize(out);
}

/// The most ranks that any rank sends to in one exchange of a return, from the copy lists.
int64_t most_peers(const Plan& plan) {
  int64_t out = 0;
  for (int rank = 0; rank < plan.problem().options.world; ++rank) {
    int64_t mine = 0;
    for (const SlotPlan& slot : plan.rank_slots(rank)) {
      mine = std::max(mine, others(slot.return_sends, rank));
      mine = std::max(mine, others(slot.relay_sends, rank));
    }
    CHECK(mine == measure_traffic(plan).ranks[static_cast<size_t>(rank)].peers);
    out = std::max(out, mine);
  }
  return out;
}

world::Case hybrid(std::vector<int64_t> mesh, std::vector<Placement> placements, int max_peers) {
  world::Case c = world::on_mesh(std::move(mesh));
  c.params = bits::params(false);
  for (world::Param& p : c.params) p.placements = placements;
  c.settings.chunk_bytes = 8192;
  c.settings.max_peers = max_peers;
  c.settings.poison = true;
  c.steps = 2;
  return c;
}

/// Passes everything on, but that in every `period`-th exchange, counted from `first`, messages to
/// others carry zeros.
class Stale : public PassingComm {
 public:
  Stale(std::unique_ptr<Comm> inner, int64_t first, int64_t period)
      : PassingComm(std::move(inner)), first_(first), period_(period), zeros_(1 << 16, 0) {}
  void exchange(Stream& stream, std::span<const SendTo> sends,
                std::span<const ReceiveFrom> receives) override {
    if (count_++ % period_ != first_) return inner_->exchange(stream, sends, receives);
    auto& kept =
        lists_.emplace_back(std::make_unique<std::vector<SendTo>>(sends.begin(), sends.end()));
    for (SendTo& s : *kept) {
      if (s.peer != rank()) s.data = zeros_.data();
    }
    inner_->exchange(stream, *kept, receives);
  }
  std::unique_ptr<Comm> duplicate() override {
    return std::make_unique<Stale>(inner_->duplicate(), first_, period_);
  }

 private:
  int64_t first_, period_, count_ = 0;
  std::vector<char> zeros_;
  std::vector<std::unique_ptr<std::vector<SendTo>>> lists_;
};

}  // namespace

TEST_CASE("relay: blocks of replicas are as large as the bound allows", "[unit][plan][relay]") {
  CHECK(relay_block(1, 64, true, 64) == 0);  // 63 peers: direct
  CHECK(relay_block(2, 4, true, 7) == 0);    // 7 peers
  CHECK(relay_block(2, 4, true, 4) == 4);    // 1 and 3
  CHECK(relay_block(2, 4, true, 3) == 4);
  CHECK(relay_block(8, 16, true, 64) == 16);   // 7 and 15
  CHECK(relay_block(8, 128, true, 64) == 32);  // 31 and 31, not 7 and 127
  CHECK(relay_block(1, 64, true, 16) == 8);    // 7 and 7: DDP
  CHECK(relay_block(16, 1, true, 4) == 0);     // one replica: nothing to forward
  CHECK(relay_block(4, 2, true, 1) == 2);      // 3 and 1: the best there is
  CHECK(relay_block(1, 2, true, 1) == 0);
  // An owner that holds nothing itself has one peer more.
  CHECK(relay_block(2, 2, true, 3) == 0);
  CHECK(relay_block(2, 2, false, 3) == 2);
}

TEST_CASE("relay: an owner's head in every block stands where it does", "[unit][plan][relay]") {
  for (int32_t replicas = 1; replicas <= 9; ++replicas) {
    for (int32_t block = 1; block <= replicas; ++block) {
      for (int32_t owner = 0; owner < replicas; ++owner) {
        std::set<int32_t> heads;
        for (int32_t r = 0; r < replicas; ++r) {
          const int32_t head = head_replica(r, owner, block, replicas);
          CHECK(head / block == r / block);
          CHECK(head < replicas);
          heads.insert(head);
        }
        CHECK(std::ssize(heads) == (replicas + block - 1) / block);
        CHECK(heads.count(owner) == 1);
      }
    }
  }
}

TEST_CASE("relay: any mix of random layouts moves every value under any bound",
          "[unit][plan][property][relay]") {
  CHECK(rc::check("two levels", [] {
    plan_case::Case c = plan_case::random_case();
    c.problem.options.max_peers = static_cast<int>(random_layout::pick(1, 4));
    RC_ASSERT(plan_simulation::run_step(c, Plan(c.problem)) == "");
  }));
}

TEST_CASE("relay: no rank returns to more peers than the bound, where it can be kept",
          "[unit][plan][relay]") {
  struct Row {
    std::vector<int64_t> mesh;
    std::vector<Placement> placements;
    int bound;
    bool relays;
  };
  for (const Row& row : {Row{{2, 2}, {kR, kS}, 2, true}, Row{{4, 2}, {kR, kS}, 3, true},
                         Row{{4, 2}, {kR, kS}, 7, false}, Row{{2, 4}, {kS, kR}, 3, true},
                         Row{{8, 2}, {kR, kS}, 7, true}, Row{{16, 2}, {kR, kS}, 7, true},
                         Row{{16}, {kR}, 3, true}, Row{{4, 2, 2}, {kR, kS, kR}, 7, true},
                         Row{{3, 3}, {kR, kP}, 2, true}, Row{{4, 2, 2}, {kR, kP, kS}, 5, true}}) {
    Problem p;
    p.options.world = 1;
    for (const int64_t n : row.mesh) p.options.world *= static_cast<int>(n);
    p.options.max_peers = row.bound;
    p.options.chunk_bytes = 40000;
    for (const char* name : {"a", "b", "c", "d", "e"})
      p.params.push_back(spec(name, row.mesh, {64, 24}, row.placements));
    std::vector<Placement> stacked = row.placements;
    p.params.push_back(spec("experts", row.mesh, {5, 12, 10}, stacked));
    p.params.push_back(spec("bias", row.mesh, {211}, row.placements, Role::kAdamW));
    const Plan plan(p);
    INFO(plan.describe());
    CHECK(most_peers(plan) <= row.bound);
    bool relays = false;
    for (const Slot& slot : plan.slots()) relays = relays || slot.relay > 0;
    CHECK(relays == row.relays);
    CHECK((plan.describe().find("two levels in") != std::string::npos) == row.relays);
    // Without a bound of the caller's nothing is forwarded in so small a world.
    p.options.max_peers = 0;
    const Plan direct(p);
    for (const Slot& slot : direct.slots()) CHECK(slot.relay == 0);
    CHECK(direct.hash() != plan.hash());
    // What crosses between ranks for each parameter is the same either way.
    CHECK(measure_traffic(direct).moved == measure_traffic(plan).moved);
  }
}

TEST_CASE("relay: a negative bound is refused", "[unit][plan][relay]") {
  Problem p;
  p.options.max_peers = -1;
  CHECK_THROWS_WITH(Plan(p), Catch::Contains("max_peers is -1"));
}

TEST_CASE("relay: a copy list that forwards to the wrong rank is noticed", "[unit][plan][relay]") {
  plan_case::Case c;
  const auto on = plan_case::mesh({2, 2, 2});
  for (const char* name : {"a", "b", "c"}) {
    plan_case::Held held;
    for (int r = 0; r < 8; ++r)
      for (int64_t e = 0; e < 12; ++e) held[r].push_back(r % 2 * 12 + e);
    ParamSpec s = plan_case::muon(name, on, {6, 4}, 2);
    plan_case::add(c, s, held);
  }
  c.problem.options.max_peers = 3;
  const Plan plan(c.problem);
  REQUIRE(plan.slots().front().relay > 0);
  auto slots = plan_case::all_slots(plan);
  REQUIRE(plan_simulation::SlotRun<uint16_t>(c, plan, 0, slots).run() == "");
  // Of two messages to forward each takes the other's way.
  auto& sends = slots[0].front().relay_sends;
  REQUIRE(!sends.empty());
  sends.front().offset = 64;
  CHECK(plan_simulation::SlotRun<uint16_t>(c, plan, 0, slots).run() != "");
}

TEST_CASE("same bits: returns in two levels, over meshes with replicas", "[bits][relay]") {
  const auto expected = world::run(hybrid({1}, {kR}, 0)).tensors;
  struct Row {
    std::vector<int64_t> mesh;
    std::vector<Placement> placements;
    int bound;
  };
  int turn = 0;
  for (const Row& row :
       {Row{{2, 2}, {kR, kS}, 1}, Row{{2, 2}, {kR, kS}, 2}, Row{{4, 2}, {kR, kS}, 3},
        Row{{2, 2, 2}, {kR, kS, kR}, 3}, Row{{8}, {kR}, 3}, Row{{3, 2}, {kR, kS}, 2},
        Row{{16}, {kR}, 3}, Row{{8, 2}, {kR, kS}, 7}, Row{{2, 4, 2}, {kR, kR, kS}, 4}}) {
    for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
      world::Case c = hybrid(row.mesh, row.placements, row.bound);
      c.settings.commit = commit;
      c.settings.window = 1 + turn % 4;
      if (turn++ % 2 == 1) {
        for (int r = c.world - 1; r >= 0; --r) c.rank_array.push_back((r + 1) % c.world);
      }
      INFO(c.describe() << " max_peers " << row.bound);
      const world::Outcome outcome = world::run(c);
      CHECK((outcome.tensors == expected));
      for (const StepReport& r : outcome.reports) CHECK(r.orthogonalized == 9);
    }
  }
}

TEST_CASE("planted faults: a rank that forwards something else is noticed", "[bits][relay]") {
  world::Case c = hybrid({2, 2}, {kR, kS}, 1);
  c.settings.chunk_bytes = 1 << 20;  // one slot: gather, return, relay
  const auto expected = world::run(hybrid({1}, {kR}, 0)).tensors;
  for (const int64_t struck : {int64_t{2}, int64_t{1} << 30}) {
    std::atomic<int> wrong = 0;
    world::on_ranks(c.world, [&](Comm& comm) {
      Stale stale(comm.duplicate(), struck, 3);
      world::Rank rank(c, stale);
      StepReport report;
      for (int step = 0; step < c.steps; ++step) rank.step(step, report);
      RANK_CHECK(rank.optimizer().comm().exchanges() == 3 * c.steps);
      wrong += !(rank.tensors(expected) == expected);
    });
    CHECK(wrong == (struck == 2 ? 4 : 0));
  }
}

TEST_CASE("faults: a rank that dies while it forwards ends the step on all, with nothing changed",
          "[unit][optimizer][relay][tsan]") {
  world::Case c;
  c.mesh = {2, 2};
  c.world = 4;
  c.settings.max_peers = 1;
  c.settings.timeout_ms = 300;
  c.settings.chunk_bytes = 2 * 6 * 5;
  for (const char* name : {"a", "b"}) {
    world::Param p;
    p.name = name;
    p.shape = {6, 5};
    p.placements = {kR, kS};
    c.params.push_back(p);
  }
  int64_t exchanges = 0;
  world::on_ranks(c.world, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport report;
    rank.step(0, report);
    if (comm.rank() == 1) exchanges = rank.optimizer().comm().exchanges();
  });
  REQUIRE(exchanges >= 3);
  for (int64_t k = 0; k < exchanges; ++k) {
    for (const bool silent : {true, false}) {
      INFO("exchange " << k << (silent ? ", dead" : ", an error that is published"));
      ThreadFaults faults;
      faults.kills.push_back({1, OperationKind::kExchange, exchanges + k, silent, 1});
      std::atomic<int> failed = 0, changed = 0;
      world::on_ranks(
          c.world,
          [&](Comm& comm) {
            world::Rank rank(c, comm);
            StepReport report;
            rank.step(0, report);
            char all[4];
            const char here = 1;
            comm.allgather(&here, all, 1);
            const auto a = rank.data(0), b = rank.data(1);
            const auto momentum = rank.state(0, StateKind::kMomentum);
            try {
              rank.step(1, report);
            } catch (const Error&) {
              ++failed;
            }
            changed += a != rank.data(0) || b != rank.data(1) ||
                       momentum != rank.state(0, StateKind::kMomentum);
          },
          faults);
      CHECK(failed == 4);
      CHECK(changed == 0);
    }
  }
}
