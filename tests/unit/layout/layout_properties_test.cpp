#include <catch2/catch.hpp>

#include "base/text.hpp"
#include "layout/holders.hpp"
#include "unit/layout/layout_random.hpp"

using namespace muonrt;
using naive::List;
using random_layout::pick;

/// Returns whether the runs cover `count` shards and adjacent runs have different sizes.
bool are_runs(const ShardRuns& runs, int64_t count) {
  int64_t end = 0, numel = -1;
  for (const ShardRun& run : runs) {
    if (run.end <= end || run.numel == numel) return false;
    end = run.end;
    numel = run.numel;
  }
  return end == count;
}

TEST_CASE("layout: for every kind, mesh and shape each rank holds the explicit lists",
          "[unit][layout][property]") {
  CHECK(rc::check("held elements and their local order", [] {
    const Layout layout = random_layout::draw(), matrix = layout.as_matrix();
    const auto expected = naive::held(layout);
    const auto [rows, cols] = matrix_shape(matrix);
    for (const auto& [rank, held] : expected) {
      RC_ASSERT(layout.local_numel(rank) == std::ssize(held));
      List got(held.size(), -1);
      RC_ASSERT(random_layout::read_blocks(blocks_of(matrix, rank), cols, got));
      RC_ASSERT(got == held);
      // The lists ascend, and adjacent runs are merged.
      for (int d = 0; d < layout.dims(); ++d) {
        const Runs runs = layout.runs_before_flat(rank, d);
        int64_t before = -1;
        for (const Run& run : runs) {
          RC_ASSERT(before < run.begin && run.begin < run.end);
          before = run.end;
        }
        if (layout.product_form())
          RC_ASSERT(layout.local_shape(rank)[static_cast<size_t>(d)] == length(runs));
      }
    }
    const ShardRuns sizes = shard_runs(layout);
    RC_ASSERT(are_runs(sizes, layout.shard_count()));
    for (const auto& [rank, held] : expected)
      RC_ASSERT(numel_of(sizes, layout.shard_index(rank)) == std::ssize(held));
    for (const auto& ranks : holders_of(matrix, 0).replicas) {
      List all;
      for (const int rank : ranks)
        all.insert(all.end(), expected.at(rank).begin(), expected.at(rank).end());
      std::sort(all.begin(), all.end());
      RC_ASSERT(all == naive::iota(rows * cols));
    }
    for (int rank = -1; rank < 64; ++rank) {
      if (expected.count(rank)) continue;
      RC_ASSERT(!layout.holds_mesh_rank(rank));
      const List shape = layout.local_shape(rank);
      RC_ASSERT(shape == List(shape.size(), 0));
      RC_ASSERT(layout.local_numel(rank) == 0);
      RC_ASSERT(layout.shard_index(rank) == -1);
      RC_ASSERT(layout.shard_group(rank).empty());
      RC_ASSERT(blocks_of(matrix, rank).empty());
    }
  }));
}

/// Converts a layout of three to five dimensions to a stack of matrices, and merges some
/// dimensions.
Layout random_stack(const Layout& layout) {
  const int batch = static_cast<int>(pick(1, layout.dims() - 2));
  return layout.viewed(batch, static_cast<int>(pick(1, layout.dims() - 1 - batch)));
}

TEST_CASE("layout: a stack splits into matrices that their holders hold exactly once",
          "[unit][layout][property]") {
  CHECK(rc::check("stacks", [] {
    const Layout layout = random_layout::draw(3, 5), stack = random_stack(layout);
    const auto expected = naive::held(layout);
    const int64_t count = stack.shape()[0], cols = stack.shape()[2],
                  numel = stack.shape()[1] * cols;
    RC_ASSERT(matrix_count(stack) == count);
    std::map<int, List> got;
    for (const auto& [rank, held] : expected) {
      int64_t local = 1;
      for (const int64_t n : stack.local_shape(rank)) local *= n;
      RC_ASSERT(local == std::ssize(held));
      got[rank] = List(held.size(), -1);
    }
    std::vector<std::vector<std::vector<int>>> replicas;  // replicas of each matrix
    for (int64_t e = 0; e < count; ++e) {
      replicas.push_back(holders_of(stack, e).replicas);
      std::set<int> named;
      const ShardRuns sizes = shard_runs(stack, e);
      for (const auto& ranks : replicas.back()) {
        int64_t sum = 0, shard = 0;
        RC_ASSERT(are_runs(sizes, std::ssize(ranks)));
        for (const int rank : ranks) {
          const int64_t before = sum;
          named.insert(rank);
          List local(expected.at(rank).size(), -1);
          RC_ASSERT(random_layout::read_blocks(blocks_of_matrix(stack, rank, e), cols, local));
          for (size_t i = 0; i < local.size(); ++i) {
            if (local[i] < 0) continue;
            RC_ASSERT(got[rank][i] == -1);
            got[rank][i] = local[i] + e * numel;
            ++sum;
          }
          RC_ASSERT(numel_of(sizes, shard++) == sum - before);
        }
        RC_ASSERT(sum == numel);
      }
      for (const int rank : layout.mesh().ranks()) {
        if (!named.count(rank)) RC_ASSERT(blocks_of_matrix(stack, rank, e).empty());
      }
    }
    RC_ASSERT(got == expected);
    // Two matrices are in the same class if and only if the same ranks hold them.
    for (int64_t a = 0; a < count; ++a) {
      for (int64_t b = 0; b < a; ++b) {
        const bool same = replicas[static_cast<size_t>(a)] == replicas[static_cast<size_t>(b)];
        RC_ASSERT(same == (holder_class(stack, a) == holder_class(stack, b)));
      }
    }
  }));
}

TEST_CASE("layout: the runs of shards do not grow with the number of ranks", "[unit][layout]") {
  const auto mesh = std::make_shared<const Mesh>(std::vector<int64_t>{512, 128});
  const auto runs = [&](std::vector<int64_t> shape, std::vector<Cut> cuts) {
    return shard_runs(Layout::from_cuts(mesh, std::move(shape), std::move(cuts)));
  };
  const int64_t shards = 65536;
  CHECK(runs({shards * 3, 5}, {{{0, 1}, 0}}) == ShardRuns{{shards, 15}});
  // 100,000 rows are cut into shards of 2 rows, so 50,000 shards have rows and the others are
  // empty.
  CHECK(runs({100000, 5}, {{{0, 1}, 0}}) == ShardRuns{{50000, 10}, {shards, 0}});
  CHECK(runs({100001, 5}, {{{0, 1}, 0}}) == ShardRuns{{50000, 10}, {50001, 5}, {shards, 0}});
  // Columns are sharded over the outer mesh dimension of size 512. The shards at 99 of its
  // coordinates have one column each, and the other 413 have none.
  CHECK(runs({256, 99}, {{{0}, 1}, {{1}, 0}}) == ShardRuns{{99 * 128, 2}, {shards, 0}});
}

TEST_CASE("layout: locate is the inverse of the lists", "[unit][layout][property]") {
  CHECK(rc::check("locate", [] {
    const Layout drawn = random_layout::draw(1);
    const Layout layout = drawn.dims() < 3 ? drawn : random_stack(drawn);
    for (int d = 0; d < layout.dims(); ++d) {
      for (int64_t i = 0; i < layout.shape()[static_cast<size_t>(d)]; ++i) {
        const Layout::Spot spot = layout.locate(d, i);
        for (const int rank : layout.mesh().ranks()) {
          const auto coords = *layout.mesh().coords(rank);
          bool there = true;
          for (size_t k = 0; k < coords.size(); ++k) {
            there = there && (spot.coords[k] < 0 || spot.coords[k] == coords[k]);
          }
          const int64_t at = position_of(layout.runs_before_flat(rank, d), i);
          RC_ASSERT(at == (there ? spot.position : -1));
        }
      }
    }
  }));
}

TEST_CASE("layout: a shard group and a replica group have exactly one common rank",
          "[unit][layout][property]") {
  CHECK(rc::check("groups", [] {
    const Layout l = random_layout::draw();
    const auto held = naive::held(l);
    RC_ASSERT(l.shard_count() * l.replicas() == l.mesh().size());
    for (const int rank : l.mesh().ranks()) {
      const std::vector<int> shard = l.shard_group(rank), replica = l.replica_group(rank);
      RC_ASSERT(std::ssize(shard) == l.shard_count());
      RC_ASSERT(std::ssize(replica) == l.replicas());
      RC_ASSERT(shard[static_cast<size_t>(l.shard_index(rank))] == rank);
      RC_ASSERT(replica[static_cast<size_t>(l.replica_index(rank))] == rank);
      RC_ASSERT(l.rank_of(l.replica_index(rank), l.shard_index(rank)) == rank);
      for (const int other : shard) RC_ASSERT(l.shard_group(other) == shard);
      for (const int other : replica) {
        RC_ASSERT(l.replica_group(other) == replica);
        RC_ASSERT(held.at(other) == held.at(rank));
        RC_ASSERT((other == rank || std::find(shard.begin(), shard.end(), other) == shard.end()));
      }
    }
  }));
}

TEST_CASE("layout: layouts are equal if all ranks hold the same elements",
          "[unit][layout][property]") {
  CHECK(rc::check("equality", [] {
    const Layout drawn = random_layout::draw(1, 2);
    const Layout a = Layout::from_cuts(drawn.shared_mesh(), drawn.shape(), drawn.cuts());
    // The second mesh has an additional dimension of size 1 and different dimension names.
    List shape = a.mesh().shape();
    const auto extra = static_cast<int>(shape.size());
    shape.push_back(1);
    std::vector<std::string> names;
    for (size_t k = 0; k < shape.size(); ++k) names.push_back(cat("name", k));
    std::vector<Cut> cuts = a.cuts();
    cuts.push_back({{extra}, 0, 3, 2});
    const Layout b = Layout::from_cuts(std::make_shared<const Mesh>(shape, names, a.mesh().ranks()),
                                       a.shape(), cuts);
    RC_ASSERT(a == b);
    RC_ASSERT(a.hash() == b.hash());
    // With a different split factor, the layouts are equal if and only if all index lists are
    // equal.
    if (a.cuts().empty()) return;
    cuts = a.cuts();
    cuts[0].split_factor = pick(1, 5);
    const Layout d = Layout::from_cuts(a.shared_mesh(), a.shape(), cuts);
    bool equal = true;
    for (const int rank : a.mesh().ranks()) {
      for (int k = 0; k < a.dims(); ++k) equal = equal && a.runs(rank, k) == d.runs(rank, k);
    }
    RC_ASSERT((a == d) == equal);
    if (a.hash() == d.hash()) RC_ASSERT(equal);
  }));
}

TEST_CASE("layout: the parts of a matrix hold its elements, counted from the start of the part",
          "[unit][layout][property]") {
  CHECK(rc::check("parts", [] {
    const Layout layout = random_layout::draw(2, 2);
    const auto random_list = [](int64_t n) {
      Runs out;
      for (int64_t at = pick(0, 3); at < n;) {
        const int64_t end = std::min(n, at + pick(1, 4));
        out.push_back({at, end});
        at = end + pick(1, 3);
      }
      return out;
    };
    const int64_t width = layout.shape()[1];
    const Runs rows = random_list(layout.shape()[0]), cols = random_list(width);
    for (const auto& [rank, held] : naive::held(layout)) {
      const auto blocks = blocks_of_part(blocks_of(layout, rank), rows, cols);
      List got(held.size(), -1), want(held.size(), -1);
      RC_ASSERT(random_layout::read_blocks(blocks, length(cols), got));
      for (size_t i = 0; i < held.size(); ++i) {
        const int64_t r = position_of(rows, held[i] / width);
        const int64_t k = position_of(cols, held[i] % width);
        if (r >= 0 && k >= 0) want[i] = r * length(cols) + k;
      }
      RC_ASSERT(got == want);
    }
  }));
}
