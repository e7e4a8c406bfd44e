#include "plan/relay.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <set>

#include "plan/report/traffic.hpp"
#include "support/bits_cases.hpp"
#include "unit/plan/plan_cases.hpp"

// Tests updates that are returned in two levels. Owners return updates to a few ranks, and these
// ranks forward them to the ranks with the same shards in other replicas. Also tests
// ReplicaMode::kEach.

using namespace muonrt;
using plan_case::placed;

namespace {

const Placement kR{PlacementKind::kReplicate, 0, 1}, kS{PlacementKind::kShard, 0, 1},
    kP{PlacementKind::kPartial, 0, 1};

/// Returns the number of ranks other than `rank` in a list of regions.
int64_t others(const std::vector<Region>& regions, int rank) {
  std::set<int32_t> out;
  for (const Region& r : regions) out.insert(r.peer);
  out.erase(rank);
  return std::ssize(out);
}

/// Returns the largest number of ranks that a rank sends to in one exchange of a return.
int64_t most_peers(const Plan& plan) {
  int64_t out = 0;
  for (int rank = 0; rank < plan.problem().options.world; ++rank) {
    int64_t mine = 0;
    for (const RankChunk& chunk : plan.rank_chunks(rank)) {
      mine = std::max(mine, others(chunk.return_sends, rank));
      mine = std::max(mine, others(chunk.relay_sends, rank));
    }
    CHECK(mine == measure_traffic(plan).ranks[static_cast<size_t>(rank)].peers);
    out = std::max(out, mine);
  }
  return out;
}

/// Returns a machine with these rates of products and links. The rates do not depend on sizes.
MachineProfile test_machine(double flops, double bytes, double message_seconds) {
  MachineProfile out;
  out.name = "test";
  out.products = {{64, flops, flops}};
  out.node_bytes = out.network_bytes = bytes;
  out.message_seconds = message_seconds;
  return out;
}

}  // namespace

TEST_CASE("relay: blocks of replicas are as large as max_peers allows", "[unit][plan][relay]") {
  CHECK(relay_block(1, 64, true, 64) == 0);  // the owner has 63 peers, so nothing is forwarded
  CHECK(relay_block(2, 4, true, 7) == 0);    // 7 peers
  CHECK(relay_block(2, 4, true, 4) == 4);    // the owner has 1 peer, a rank that forwards has 3
  CHECK(relay_block(2, 4, true, 3) == 4);
  CHECK(relay_block(8, 16, true, 64) == 16);   // 7 and 15
  CHECK(relay_block(8, 128, true, 64) == 32);  // 31 and 31, not 7 and 127
  CHECK(relay_block(1, 64, true, 16) == 8);    // 7 and 7: DDP
  CHECK(relay_block(16, 1, true, 4) == 0);     // one replica: nothing to forward
  CHECK(relay_block(4, 2, true, 1) == 2);      // 3 and 1, which is the minimum
  CHECK(relay_block(1, 2, true, 1) == 0);
  // An owner that holds no shard has one more peer.
  CHECK(relay_block(2, 2, true, 3) == 0);
  CHECK(relay_block(2, 2, false, 3) == 2);
}

TEST_CASE("relay: in every block an owner returns to the replica with its own offset",
          "[unit][plan][relay]") {
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

TEST_CASE("relay: no rank returns to more than max_peers peers, if possible",
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
    p.options.max_peers = row.bound;
    p.options.chunk_bytes = 40000;
    const auto on = plan_case::mesh(row.mesh);
    for (const char* name : {"a", "b", "c", "d", "e"})
      plan_case::add(p, placed(name, on, {64, 24}, row.placements));
    plan_case::add(p, placed("experts", on, {5, 12, 10}, row.placements));
    plan_case::add(p, placed("bias", on, {211}, row.placements, Role::kAdamW));
    const Plan plan(p);
    INFO(plan.describe());
    CHECK(most_peers(plan) <= row.bound);
    bool relays = false;
    for (const ChunkSpec& chunk : plan.chunks()) relays = relays || chunk.relay > 0;
    CHECK(relays == row.relays);
    CHECK((plan.describe().find("two levels in") != std::string::npos) == row.relays);
    // With the default of max_peers, nothing is forwarded between so few ranks.
    p.options.max_peers = 0;
    const Plan direct(p);
    for (const ChunkSpec& chunk : direct.chunks()) CHECK(chunk.relay == 0);
    CHECK(direct.hash() != plan.hash());
    // For each parameter, forwarding does not change the number of bytes that are sent.
    CHECK(measure_traffic(direct).moved == measure_traffic(plan).moved);
  }
}

TEST_CASE("relay: up to window - 1 chunks with two levels come after window - 1 others",
          "[unit][plan][relay]") {
  // Eight ranks have five chunks with direct returns (D) and two chunks with returns in two levels
  // (R).
  Problem p;
  p.options.max_peers = 3;
  p.options.chunk_bytes = 1;
  const auto on = plan_case::mesh({4, 2});
  for (int i = 0; i < 40; ++i) plan_case::add(p, placed(cat("near", i), on, {64, 64}, {kS, kS}));
  for (int i = 0; i < 16; ++i) plan_case::add(p, placed(cat("far", i), on, {64, 64}, {kR, kS}));
  for (const auto& [window, order] :
       {std::pair(1, "DDDDDRR"), {2, "DRDDDDR"}, {3, "DDRRDDD"}, {6, "DDDDDRR"}, {64, "DDDDDRR"}}) {
    p.options.window = window;
    const Plan plan(p);
    std::string found;
    for (const ChunkSpec& chunk : plan.chunks()) found += chunk.relay > 0 ? 'R' : 'D';
    CHECK(found == order);
    for (const Matrix& m : plan.matrices())
      CHECK((found[static_cast<size_t>(m.chunk)] == 'R') == (m.param >= 40));
  }
}

TEST_CASE("same bits: returns in two levels, and ReplicaMode::kEach", "[bits][relay][nosan]") {
  struct Row {
    std::vector<int64_t> mesh;
    std::vector<Placement> placements;
    int bound, replicas;
  };
  const auto make = [](const Row& row, ReplicaMode replicas, int turn) {
    world::Case c = world::on_mesh(row.mesh);
    c.params = bits::params(false);
    for (world::Param& p : c.params) p.placements = row.placements;
    c.settings.chunk_bytes = 8192;
    c.settings.max_peers = row.bound;
    c.settings.poison = true;
    c.settings.replica_mode = replicas;
    c.settings.commit = turn % 2 ? CommitMode::kEager : CommitMode::kAtomic;
    c.settings.window = 1 + turn % 4;
    c.steps = 2;
    for (int r = c.world - 1; turn % 3 == 1 && r >= 0; --r)
      c.rank_array.push_back((r + 1) % c.world);
    return c;
  };
  constexpr int64_t kMatrices = 9;
  const auto expected = world::run(make({{1}, {kR}, 0, 1}, ReplicaMode::kOnce, 0)).tensors;
  int turn = 0;
  for (const Row& row :
       {Row{{2, 2}, {kR, kS}, 1, 2}, Row{{2, 2}, {kR, kS}, 2, 2}, Row{{4, 2}, {kR, kS}, 3, 4},
        Row{{2, 2, 2}, {kR, kS, kR}, 3, 4}, Row{{8}, {kR}, 3, 8}, Row{{3, 2}, {kR, kS}, 2, 3},
        Row{{16}, {kR}, 3, 16}, Row{{8, 2}, {kR, kS}, 7, 8}, Row{{2, 4, 2}, {kR, kR, kS}, 4, 8}}) {
    for (const ReplicaMode replicas :
         {ReplicaMode::kOnce, ReplicaMode::kEach, ReplicaMode::kAuto, ReplicaMode::kEveryRank}) {
      const world::Case c = make(row, replicas, turn++);
      INFO(c.describe() << " max_peers " << row.bound << " replicas "
                        << static_cast<int>(replicas));
      const world::Outcome outcome = world::run(c);
      CHECK((outcome.tensors == expected));
      for (const StepReport& r : outcome.reports) {
        CHECK(r.orthogonalized == r.planned);
        if (replicas == ReplicaMode::kOnce) CHECK(r.planned == kMatrices);
        if (replicas == ReplicaMode::kEach) CHECK(r.planned == kMatrices * row.replicas);
        if (replicas == ReplicaMode::kEveryRank) CHECK(r.planned == kMatrices * c.world);
      }
    }
  }
}

TEST_CASE("replicas: kEach moves nothing between replicas", "[unit][plan][replicas]") {
  Problem p;
  p.options.replica_mode = ReplicaMode::kEach;
  const auto on = plan_case::mesh({2, 3});
  plan_case::add(p, placed("a", on, {64, 64}, {kR, kS}));
  plan_case::add(p, placed("b", on, {48, 48}, {kR, kS}));
  const Plan plan(p);
  REQUIRE(plan.matrices().size() == 4);
  for (const Matrix& m : plan.matrices()) CHECK(m.owner / 3 == m.replica);
  for (int rank = 0; rank < 6; ++rank) {
    for (const RankChunk& chunk : plan.rank_chunks(rank)) {
      for (const auto* list : {&chunk.gather_sends, &chunk.return_sends, &chunk.return_receives}) {
        for (const Region& region : *list) CHECK(region.peer / 3 == rank / 3);
      }
    }
  }
  // The owner that the caller sets also determines the owners in the other replicas.
  p.params[0].owner = 4;
  const Plan given(p);
  CHECK(given.matrices()[0].owner == 1);
  CHECK(given.matrices()[1].owner == 4);
}

TEST_CASE("replicas: auto chooses the cheaper mode of the model and reports both",
          "[unit][plan][replicas]") {
  Problem p;
  p.options.replica_mode = ReplicaMode::kAuto;
  const auto on = plan_case::mesh({2});
  for (const char* name : {"a", "b"}) plan_case::add(p, placed(name, on, {64, 64}, {kR}));
  // Products cost nothing, so repeating them saves the messages.
  p.options.machine = test_machine(1e30, 1e9, 1e-5);
  const Plan each(p);
  CHECK(each.each_replica());
  CHECK(each.each_seconds() < each.once_seconds());
  CHECK(each.describe().find("once in every replica (modelled: ") != std::string::npos);
  // Messages cost nothing.
  p.options.machine = test_machine(1e6, 1e24, 0);
  const Plan once(p);
  CHECK_FALSE(once.each_replica());
  CHECK(once.once_seconds() < once.each_seconds());
  // Each rank owns one of two equal matrices and sends one message with its update to the other
  // rank.
  p.options.machine = test_machine(1e9, 1e6, 1e-3);
  p.options.machine.exchange_seconds = 0.5;
  const Plan counted(p);
  const double cost = counted.matrices()[0].cost;
  CHECK(counted.once_seconds() == Approx(cost / 1e9 + 64 * 64 * 2 / 1e6 + 1e-3 + 0.5));
  CHECK(counted.each_seconds() == Approx(2 * cost / 1e9));
  CHECK(counted.describe().find(" ms in every replica, on test)") != std::string::npos);
}

TEST_CASE("replicas: the cost model reads rates by size, dtype and link",
          "[unit][plan][replicas]") {
  // There are two replicas of two ranks each. A node has four ranks, two ranks or one rank.
  Problem p;
  p.options.replica_mode = ReplicaMode::kAuto;
  p.options.machine = test_machine(1e9, 1e6, 0);
  MachineProfile& machine = p.options.machine;
  const auto on = plan_case::mesh({2, 2});
  for (const char* name : {"a", "b"}) plan_case::add(p, placed(name, on, {64, 64}, {kR, kS}));
  p.params[0].iteration_dtype = p.params[1].iteration_dtype = DType::kBF16;
  const double cost = Plan(p).matrices()[0].cost;
  const auto seconds = [&](int node_ranks) {
    machine.node_ranks = node_ranks;
    const Plan plan(p);
    return std::pair(plan.once_seconds(), plan.each_seconds());
  };
  // With kOnce, the owners are in different replicas, and each owner returns halves of its matrix
  // to three ranks. With kEach, a rank sends its neighbor half a matrix in the gather, and returns
  // half a matrix.
  const auto inside = seconds(4);
  const double once_bytes = (inside.first - cost / 1e9) * 1e6;
  const double each_bytes = (inside.second - cost / 1e9) * 1e6;
  CHECK(once_bytes == Approx(3 * 64 * 32 * 2));
  CHECK(each_bytes == Approx(2 * 64 * 32 * 2));
  machine.network_bytes = 1e5;
  CHECK(seconds(4) == inside);
  // Only kOnce uses the network if each replica is a node.
  CHECK(seconds(2).first == Approx(cost / 1e9 + once_bytes / 1e5));
  CHECK(seconds(2).second == inside.second);
  CHECK(seconds(1).second == Approx(cost / 1e9 + each_bytes / 1e5));
  // The rate of products depends on the short side and on the dtype of the iterates.
  machine.products = {{32, 1e8, 1e8}, {64, 2e9, 2e9}};
  CHECK(seconds(4).first == Approx(cost / 2e9 + once_bytes / 1e6));
  machine.f32_ratio = 0.25;
  CHECK(seconds(4).first == Approx(cost / 2e9 + once_bytes / 1e6));
  for (ParamSpec& spec : p.params) spec.iteration_dtype = DType::kF32;
  CHECK(seconds(4).first == Approx(cost / 5e8 + once_bytes / 1e6));
  // Exchanges of several chunks overlap with products, except the first gather and the last return.
  for (const char* name : {"c", "d", "e", "f"})
    plan_case::add(p, placed(name, on, {64, 64}, {kR, kS}));
  p.options.chunk_bytes = 64 * 64 * 2;
  machine.products = {{64, 1e9, 1e9}};
  machine.f32_ratio = 1;
  const Plan chunks(p);
  REQUIRE(chunks.chunks().size() > 1);
  machine.products = {{64, 1e3, 1e3}};
  const double products = chunks.makespan() / 1e3;
  const double exposed = Plan(p).once_seconds() - products;
  machine.products = {{64, 1e24, 1e24}};
  const double exchanged = Plan(p).once_seconds();
  CHECK(exposed > 0);
  CHECK(exposed < exchanged / 2);
  machine.products.clear();
  CHECK_THROWS_WITH(Plan(p), Catch::Contains("set a machine"));
}

TEST_CASE(
    "replicas: auto makes no plan with kEach if its products cost more; kEach rejects 63 bits",
    "[unit][plan][replicas]") {
  // Each of the 4 matrices takes about 10^15 FLOPs in each of the 4,096 replicas. The sum exceeds
  // 63 bits.
  Problem p;
  p.options.replica_mode = ReplicaMode::kAuto;
  p.options.machine = test_machine(1e15, 1e12, 1e-6);
  const auto on = plan_case::mesh({1 << 12});
  for (const char* name : {"a", "b", "c", "d"})
    plan_case::add(p, placed(name, on, {32768, 32768}, {kR}));
  const Plan plan(p);
  CHECK_FALSE(plan.each_replica());
  CHECK(plan.each_seconds() > plan.once_seconds());
  p.options.replica_mode = ReplicaMode::kEach;
  try {
    const Plan each(p);
    FAIL("accepted");
  } catch (const Error& e) {
    INFO(e.message());
    CHECK(e.status() == Status::kInvalidArgument);
    CHECK(e.message().find("in every replica") != std::string::npos);
    CHECK(e.message().find("replica_mode to once or auto") != std::string::npos);
  }
}

TEST_CASE("faults: if a rank dies while it forwards, the step fails on all ranks without changes",
          "[unit][optimizer][relay][tsan]") {
  world::Case c = world::on_mesh({2, 2});
  c.settings.max_peers = 1;
  c.settings.timeout_ms = 300;
  c.settings.chunk_bytes = 2 * 6 * 5;
  for (const char* name : {"a", "b"}) c.params.push_back(world::matrix(name, {6, 5}, {kR, kS}));
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
