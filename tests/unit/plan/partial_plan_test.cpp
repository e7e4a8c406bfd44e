#include <algorithm>
#include <catch2/catch.hpp>

#include "layout/placement.hpp"
#include "plan/report/traffic.hpp"
#include "plan/slices.hpp"
#include "support/plan_memory.hpp"

using namespace muonrt;

namespace {

ParamSpec spec(const char* name, const std::shared_ptr<const Mesh>& mesh,
               std::vector<int64_t> shape, const std::vector<Placement>& placements, Role role) {
  ParamSpec out;
  out.name = name;
  out.role = role;
  out.layout = Layout::from_placements(mesh, std::move(shape), placements, Reading::kLiteral);
  return out;
}

const Placement kP{PlacementKind::kPartial, 0, 1}, kR{PlacementKind::kReplicate, 0, 1},
    kS{PlacementKind::kShard, 0, 1};

Problem problem(std::vector<int64_t> sizes, const std::vector<Placement>& placements, int64_t chunk,
                CommitMode commit) {
  const auto mesh = std::make_shared<const Mesh>(std::move(sizes));
  Problem out;
  out.options.world = static_cast<int>(mesh->size());
  out.options.chunk_bytes = chunk;
  out.options.commit = commit;
  for (const char* name : {"a", "b", "c", "d", "e"})
    out.params.push_back(spec(name, mesh, {24, 10}, placements, Role::kMuon));
  out.params.push_back(spec("head", mesh, {200, 64}, placements, Role::kAdamW));
  out.params.push_back(spec("bias", mesh, {31}, placements, Role::kAdamW));
  out.params.back().dtype = DType::kBF16;
  out.params.push_back(spec("cube", mesh, {3, 4, 5}, placements, Role::kAdamW));
  out.params.back().grad_dtype = DType::kBF16;
  out.params.back().master = true;
  return out;
}

}  // namespace

TEST_CASE("partial: sizes measured in one pass equal those of the copy lists",
          "[unit][plan][partial]") {
  struct Row {
    std::vector<int64_t> mesh;
    std::vector<Placement> placements;
    int max_peers = 0;
  };
  for (const Row& row : {Row{{4}, {kP}}, Row{{2, 3}, {kP, kS}}, Row{{2, 2, 2}, {kR, kS, kP}},
                         Row{{4, 2}, {kR, kP}, 3}, Row{{2, 3, 2}, {kP, kR, kS}, 1}}) {
    for (const int64_t chunk : {int64_t{1}, int64_t{4096}, int64_t{1} << 20}) {
      for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
        Problem of = problem(row.mesh, row.placements, chunk, commit);
        of.options.max_peers = row.max_peers;
        const Plan plan(of);
        const PlanTraffic traffic = measure_traffic(plan);
        std::vector<int64_t> sent(traffic.ranks.size(), 0), received(sent);
        int64_t total = 0;
        for (size_t r = 0; r < sent.size(); ++r) {
          const auto slots = plan.rank_slots(static_cast<int>(r));
          for (const SlotPlan& slot : slots) {
            for (const auto* list : {&slot.gather_sends, &slot.return_sends, &slot.relay_sends}) {
              for (const Region& region : *list) {
                if (region.peer == static_cast<int32_t>(r)) continue;
                sent[r] += region.bytes;
                received[static_cast<size_t>(region.peer)] += region.bytes;
              }
            }
          }
          total += sent[r];
          const MemoryPlan memory = memory_of(plan, static_cast<int>(r));
          const RankTraffic& measured = traffic.ranks[r];
          CHECK(memory.message_bytes == measured.memory.message_bytes);
          CHECK(memory.staged_bytes == measured.memory.staged_bytes);
          CHECK(memory.state_bytes == measured.memory.state_bytes);
          CHECK(std::ssize(slots) == measured.slots);
        }
        for (size_t r = 0; r < sent.size(); ++r) {
          CHECK(sent[r] == traffic.ranks[r].sent);
          CHECK(received[r] == traffic.ranks[r].received);
        }
        if (row.max_peers == 0) CHECK(total == traffic.moved_total);
        CHECK(total >= traffic.moved_total);
      }
    }
  }
}

TEST_CASE("partial: slices tile what a rank holds, whatever the numbers", "[unit][plan][partial]") {
  for (const int64_t numel : {0, 1, 2, 7, 64, 1000}) {
    for (const int32_t count : {1, 2, 5}) {
      for (const int64_t members : {1, 3, 8}) {
        std::vector<int> taken(static_cast<size_t>(numel), 0);
        for (int32_t i = 0; i < count; ++i) {
          for (int64_t m = 0; m < members; ++m) {
            const auto [begin, end] = slice_of(numel, {0, i, count}, m, members);
            for (int64_t e = begin; e < end; ++e) ++taken[static_cast<size_t>(e)];
          }
        }
        CHECK(std::count(taken.begin(), taken.end(), 1) == numel);
      }
    }
  }
}

TEST_CASE("partial: AdamW moments and work are spread over all holders", "[unit][plan][partial]") {
  const auto mesh = std::make_shared<const Mesh>(std::vector<int64_t>{2, 4});
  Problem p;
  p.options.world = 8;
  p.params = {spec("embedding", mesh, {800, 10}, {kR, kP}, Role::kAdamW)};
  const Plan plan(p);
  for (const RankTraffic& rank : measure_traffic(plan).ranks)
    CHECK(rank.memory.state_bytes == 1000 * 8);
  // Each rank sends its addend of the slices that its own replica owns, and its own new values to
  // all the others.
  const PlanTraffic traffic = measure_traffic(plan);
  for (const RankTraffic& r : traffic.ranks) CHECK(r.sent == 3 * 4000 + 7 * 4000);
}

TEST_CASE("priority: parameters of lower numbers go first", "[unit][plan]") {
  Problem p = problem({4}, {kS}, 1 << 20, CommitMode::kAtomic);
  const auto order = [](const Problem& of) {
    const Plan plan(of);
    std::vector<int32_t> slots;
    for (int i = 0; i < 5; ++i) slots.push_back(plan.matrices()[static_cast<size_t>(i)].slot);
    return slots;
  };
  CHECK(order(p) == std::vector<int32_t>{0, 0, 0, 0, 0});
  const int32_t wanted[] = {3, 1, -2, 1, 0};
  for (size_t i = 0; i < 5; ++i) p.params[i].priority = wanted[i];
  CHECK(order(p) == std::vector<int32_t>{3, 2, 0, 2, 1});
  const uint64_t hash = Plan(p).hash();
  p.params[0].priority = 4;
  CHECK(Plan(p).hash() != hash);
}
