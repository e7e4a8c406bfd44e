#include <catch2/catch.hpp>
#include <set>

#include "plan/chunks.hpp"
#include "plan/slices.hpp"
#include "unit/plan/plan_cases.hpp"

using namespace muonrt;
using plan_case::pick;

namespace {

struct Use {
  int64_t bytes = 0, cost = 0;
  int items = 0;
};

/// Returns for each chunk the bytes and costs of each owner.
std::vector<std::map<int32_t, Use>> uses(const std::vector<ChunkItem>& items, const Chunking& c) {
  std::vector<std::map<int32_t, Use>> out(static_cast<size_t>(c.chunks));
  for (size_t i = 0; i < items.size(); ++i) {
    Use& use = out.at(static_cast<size_t>(c.chunk_of[i]))[items[i].owner];
    use.bytes += items[i].bytes;
    use.cost += items[i].cost;
    ++use.items;
  }
  return out;
}

}  // namespace

TEST_CASE("chunks: an owner has at most the budget in a chunk, or one larger matrix",
          "[unit][plan][property]") {
  CHECK(rc::check("budget, each once, none empty", [] {
    std::vector<ChunkItem> items;
    const int64_t n = pick(0, 60), owners = pick(1, 5), budget = pick(1, 40);
    for (int64_t i = 0; i < n; ++i) {
      items.push_back({static_cast<int32_t>(pick(0, owners - 1)), static_cast<int32_t>(pick(0, 3)),
                       pick(1, 50), pick(1, 50)});
    }
    const Chunking chunks = cut_chunks(items, budget);
    RC_ASSERT(chunks.chunk_of.size() == items.size());
    RC_ASSERT((chunks.chunks == 0) == items.empty());
    for (const int32_t chunk : chunks.chunk_of) RC_ASSERT(chunk >= 0 && chunk < chunks.chunks);
    for (const auto& chunk : uses(items, chunks)) {
      RC_ASSERT(!chunk.empty());
      for (const auto& [owner, use] : chunk) RC_ASSERT(use.bytes <= budget || use.items == 1);
    }
  }));
}

TEST_CASE("chunks: there are as many chunks as the owner with the most bytes needs",
          "[unit][plan]") {
  // Owner 0 has 5 items of 30 bytes, and two fit into a chunk, so it needs 3 chunks. Owner 1 has 4
  // items of 10 bytes, which fit into one chunk.
  std::vector<ChunkItem> items;
  for (int i = 0; i < 5; ++i) items.push_back({0, 0, 1, 30});
  for (int i = 0; i < 4; ++i) items.push_back({1, 0, 1, 10});
  CHECK(cut_chunks(items, 70).chunks == 3);
  CHECK(cut_chunks(items, 1000).chunks == 1);
  CHECK(cut_chunks(items, 1).chunks == 5);
}

TEST_CASE("chunks: different owners have costs as equal as their items allow", "[unit][plan]") {
  // Owner 0 has 8 items of cost 6. Owner 1 has 24 items of cost 2 and few bytes. Owner 2 has one
  // item of cost 12 and 12 items of cost 3. The bytes of owner 0 need four chunks, so the cost per
  // chunk and owner should be about 12.
  std::vector<ChunkItem> items;
  for (int i = 0; i < 8; ++i) items.push_back({0, 0, 6, 50});
  for (int i = 0; i < 24; ++i) items.push_back({1, 1, 2, 1});
  items.push_back({2, 2, 12, 10});
  for (int i = 0; i < 12; ++i) items.push_back({2, 3, 3, 10});
  const Chunking chunks = cut_chunks(items, 100);
  REQUIRE(chunks.chunks == 4);
  for (const auto& chunk : uses(items, chunks)) {
    for (int32_t owner = 0; owner < 3; ++owner) {
      CHECK(chunk.at(owner).cost >= 12 - 3);
      CHECK(chunk.at(owner).cost <= 12 + 3);
    }
  }
}

TEST_CASE("chunks: an owner with few items finishes early instead of spreading them",
          "[unit][plan]") {
  // Owner 0 has 10 chunks with one item each; owner 1 has two items that fit into one chunk.
  std::vector<ChunkItem> items;
  for (int i = 0; i < 10; ++i) items.push_back({0, 0, 10, 100});
  for (int i = 0; i < 2; ++i) items.push_back({1, 1, 5, 10});
  const Chunking chunks = cut_chunks(items, 100);
  REQUIRE(chunks.chunks == 10);
  CHECK(chunks.chunk_of[10] == 0);
  CHECK(chunks.chunk_of[11] == 0);
}

TEST_CASE("chunks: equal batches of an owner are adjacent", "[unit][plan]") {
  // In the order of names, items of two batches with equal costs alternate. The first chunks must
  // contain one batch, and the last chunks the other batch.
  std::vector<ChunkItem> items;
  for (int i = 0; i < 8; ++i) items.push_back({0, i % 2, 5, 10});
  const Chunking chunks = cut_chunks(items, 20);
  REQUIRE(chunks.chunks == 4);
  for (int i = 0; i < 8; ++i) CHECK(chunks.chunk_of[static_cast<size_t>(i)] / 2 == i % 2);
}

TEST_CASE("chunks: overlap, the matrices and the size of messages limit the number",
          "[unit][plan]") {
  const struct {
    int64_t matrices, bytes;  // of owner 0 (owner 1 has one matrix)
    int window;
    int64_t least;
    int32_t chunks;
  } table[] = {
      {6, 100, 3, 100, 3},  {6, 100, 3, 200, 3},   {6, 100, 3, 250, 2}, {6, 100, 3, 601, 1},
      {2, 100, 3, 1, 2},    {1, 100, 3, 1, 1},     {6, 100, 1, 1, 1},   {6, 100, 2, 100, 2},
      {6, 100, 5, 100, 5},  {6, 100, 9, 100, 6},    // a chunk has at least one matrix
      {40, 100, 3, 100, 5}, {40, 100, 3, 50, 10},   // at most 8 times the minimum
      {400, 100, 3, 1, 16}, {400, 100, 20, 1, 20},  // at most 16, or `window` if it is larger
  };
  for (const auto& row : table) {
    std::vector<ChunkItem> items = {{1, 0, 5, row.bytes}};
    for (int64_t i = 0; i < row.matrices; ++i) items.push_back({0, 0, 5, row.bytes});
    INFO(row.matrices << " matrices, window " << row.window << ", least " << row.least);
    const int32_t wanted = chunks_to_overlap(items, row.window, row.least);
    CHECK(wanted == row.chunks);
    CHECK(cut_chunks(items, 1 << 20, wanted).chunks == row.chunks);
    CHECK(cut_chunks(items, 100, wanted).chunks == row.matrices);  // the budget is one matrix
  }
  CHECK(chunks_to_overlap({}, 3, 1) == 1);
  CHECK(least_part(6400, 1) == 6400);
  CHECK(least_part(6400, 64) == 6400);
  CHECK(least_part(6400, 640) == 64000);  // 100 bytes for each of 640 messages
}

TEST_CASE("chunks: no chunk is empty, even if more chunks than matrices are requested",
          "[unit][plan][property]") {
  CHECK(rc::check("wanted", [] {
    std::vector<ChunkItem> items;
    const int64_t n = pick(1, 40), owners = pick(1, 5), budget = pick(1, 200);
    for (int64_t i = 0; i < n; ++i)
      items.push_back({static_cast<int32_t>(pick(0, owners - 1)), 0, pick(1, 50), pick(1, 50)});
    const auto wanted = static_cast<int32_t>(pick(1, 20));
    const Chunking chunks = cut_chunks(items, budget, wanted);
    RC_ASSERT(chunks.chunks <= std::max(wanted, cut_chunks(items, budget).chunks));
    for (const auto& chunk : uses(items, chunks)) {
      RC_ASSERT(!chunk.empty());
      for (const auto& [owner, use] : chunk) RC_ASSERT(use.bytes <= budget || use.items == 1);
    }
  }));
}

TEST_CASE("plan: every matrix is in exactly one chunk, and the chunks list their matrices",
          "[unit][plan][property]") {
  CHECK(rc::check("chunks", [] {
    const Plan plan(plan_case::random_problem());
    const PlanOptions& o = plan.problem().options;
    std::set<int32_t> seen;
    for (size_t s = 0; s < plan.chunks().size(); ++s) {
      int64_t bytes = 0;
      std::map<int32_t, Use> use;
      RC_ASSERT(std::is_sorted(plan.chunks()[s].matrices.begin(), plan.chunks()[s].matrices.end()));
      for (const int32_t id : plan.chunks()[s].matrices) {
        const Matrix& m = plan.matrices()[static_cast<size_t>(id)];
        RC_ASSERT(seen.insert(id).second);
        RC_ASSERT(m.chunk == static_cast<int32_t>(s));
        const int64_t size = m.rows * m.cols * size_of(o.transport_dtype);
        bytes += size;
        use[m.owner].bytes += size;
        ++use[m.owner].items;
      }
      RC_ASSERT(bytes == plan.chunks()[s].bytes);
      for (const auto& [owner, u] : use) RC_ASSERT(u.bytes <= o.chunk_bytes || u.items == 1);
    }
    RC_ASSERT(seen.size() == plan.matrices().size());
  }));
}

TEST_CASE("priority: parameters with lower values come first", "[unit][plan]") {
  Problem p;
  for (const char* name : {"a", "b", "c", "d", "e"})
    plan_case::add(p, plan_case::muon(name, plan_case::mesh({4}), {24, 10}));
  const auto order = [](const Problem& of) {
    const Plan plan(of);
    std::vector<int32_t> chunks;
    for (const Matrix& m : plan.matrices()) chunks.push_back(m.chunk);
    return chunks;
  };
  CHECK(order(p) == std::vector<int32_t>{0, 0, 0, 0, 0});
  const int32_t wanted[] = {3, 1, -2, 1, 0};
  for (size_t i = 0; i < 5; ++i) p.params[i].priority = wanted[i];
  CHECK(order(p) == std::vector<int32_t>{3, 2, 0, 2, 1});
}

TEST_CASE("slices: the slices cover the local elements exactly once", "[unit][plan][partial]") {
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
