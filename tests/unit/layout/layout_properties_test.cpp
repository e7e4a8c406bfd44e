#include <catch2/catch.hpp>
#include <set>

#include "base/text.hpp"
#include "layout/holders.hpp"
#include "unit/layout/layout_random.hpp"

using namespace muonrt;
using naive::List;
using random_layout::Case;
using random_layout::pick;
using random_layout::random_case;

TEST_CASE("layout: for every kind, mesh and shape each rank holds what explicit lists say",
          "[unit][layout][property]") {
  CHECK(rc::check("held elements and their local order", [] {
    const Case c = random_case();
    const Layout matrix = c.layout.as_matrix();
    const int64_t cols = matrix_shape(matrix).second;
    for (const auto& [rank, held] : c.held) {
      RC_ASSERT(c.layout.local_numel(rank) == std::ssize(held));
      List got(held.size(), -1);
      RC_ASSERT(random_layout::read_blocks(blocks_of(matrix, rank), cols, 0, got));
      RC_ASSERT(got == held);
    }
    for (int rank = 0; rank < 64; ++rank) {
      if (c.held.count(rank)) continue;
      RC_ASSERT(!c.layout.holds_mesh_rank(rank));
      RC_ASSERT(blocks_of(matrix, rank).empty());
    }
  }));
}

TEST_CASE("layout: every replica holds every element exactly once", "[unit][layout][property]") {
  CHECK(rc::check("replicas", [] {
    const Case c = random_case();
    const Layout matrix = c.layout.as_matrix();
    const auto [rows, cols] = matrix_shape(matrix);
    for (const auto& ranks : holders_of(matrix, 0).replicas) {
      List count(static_cast<size_t>(rows * cols), 0);
      for (const int rank : ranks) {
        for (const Block& b : blocks_of(matrix, rank)) {
          for (int64_t i = 0; i < b.numel(); ++i) {
            ++count[static_cast<size_t>((b.row + i / b.cols) * cols + b.col + i % b.cols)];
          }
        }
      }
      RC_ASSERT(count == List(count.size(), 1));
    }
  }));
}

TEST_CASE("layout: lists are ascending, with neighbours merged", "[unit][layout][property]") {
  CHECK(rc::check("runs", [] {
    const Case c = random_case(1);
    for (const int rank : c.layout.mesh().ranks()) {
      for (int d = 0; d < c.layout.dims(); ++d) {
        const Runs runs = c.layout.runs_before_flat(rank, d);
        int64_t before = -1;
        for (const Run& run : runs) {
          RC_ASSERT(run.begin > before);
          RC_ASSERT(run.end > run.begin);
          before = run.end;
        }
        RC_ASSERT(before <= c.shape[static_cast<size_t>(d)]);
        if (c.layout.product_form())
          RC_ASSERT(c.layout.local_shape(rank)[static_cast<size_t>(d)] == length(runs));
      }
    }
  }));
}

/// A layout of three to five dims as a stack of matrices, some dims taken as one.
Layout random_stack(const Case& c) {
  const int dims = c.layout.dims();
  const int batch = static_cast<int>(pick(1, dims - 2));
  return c.layout.viewed(batch, static_cast<int>(pick(1, dims - 1 - batch)));
}

TEST_CASE("layout: a stack splits into matrices that their holders hold exactly once",
          "[unit][layout][property]") {
  CHECK(rc::check("stacks", [] {
    const Case c = random_case(3, 5);
    const Layout stack = random_stack(c);
    const int64_t count = stack.shape()[0], cols = stack.shape()[2],
                  numel = stack.shape()[1] * cols;
    RC_ASSERT(matrix_count(stack) == count);
    for (const auto& [rank, held] : c.held) {
      int64_t local = 1;
      for (const int64_t n : stack.local_shape(rank)) local *= n;
      RC_ASSERT(local == std::ssize(held));
    }
    std::map<int, List> got;
    for (const auto& [rank, held] : c.held) got[rank] = List(held.size(), -1);
    for (int64_t e = 0; e < count; ++e) {
      const MatrixHolders holders = holders_of(stack, e);
      const Layout alone = matrix_layout(stack, e);
      RC_ASSERT(holders.replicas == holders_of(alone, 0).replicas);
      std::set<int> named;
      for (const auto& ranks : holders.replicas) {
        int64_t sum = 0;
        for (const int rank : ranks) {
          named.insert(rank);
          const std::vector<Block> blocks = blocks_of_matrix(stack, rank, e);
          List local(c.held.at(rank).size(), -1);
          RC_ASSERT(random_layout::read_blocks(blocks, cols, 0, local));
          for (size_t i = 0; i < local.size(); ++i) {
            if (local[i] < 0) continue;
            RC_ASSERT(got[rank][i] == -1);
            got[rank][i] = local[i] + e * numel;
            ++sum;
          }
          std::vector<Block> own = blocks_of(alone, rank);
          for (Block& b : own) b.local_offset += blocks.empty() ? 0 : blocks[0].local_offset;
          RC_ASSERT(own == blocks);
        }
        RC_ASSERT(sum == numel);
      }
      for (const int rank : c.layout.mesh().ranks()) {
        if (!named.count(rank)) RC_ASSERT(blocks_of_matrix(stack, rank, e).empty());
      }
    }
    RC_ASSERT(got == c.held);
  }));
}

TEST_CASE(
    "layout: two matrices of a stack have one holder class exactly if the same ranks hold them",
    "[unit][layout][property]") {
  CHECK(rc::check("holder class", [] {
    const Case c = random_case(3, 5);
    const Layout stack = random_stack(c);
    for (int64_t a = 0; a < stack.shape()[0]; ++a) {
      for (int64_t b = 0; b < stack.shape()[0]; ++b) {
        const bool same = holders_of(stack, a).replicas == holders_of(stack, b).replicas;
        RC_ASSERT(same == (holder_class(stack, a) == holder_class(stack, b)));
      }
    }
  }));
}

TEST_CASE("layout: locate is the inverse of the lists", "[unit][layout][property]") {
  CHECK(rc::check("locate", [] {
    const Case c = random_case(1);
    const Layout layout = c.layout.dims() < 3 ? c.layout : random_stack(c);
    for (int d = 0; d < layout.dims(); ++d) {
      for (int64_t i = 0; i < layout.shape()[static_cast<size_t>(d)]; ++i) {
        const Layout::Spot spot = layout.locate(d, i);
        for (const int rank : c.layout.mesh().ranks()) {
          const auto coords = *c.layout.mesh().coords(rank);
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

TEST_CASE("layout: a shard group and a replica group meet in exactly one rank",
          "[unit][layout][property]") {
  CHECK(rc::check("groups", [] {
    const Case c = random_case();
    const Layout& l = c.layout;
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
        RC_ASSERT(c.held.at(other) == c.held.at(rank));
        RC_ASSERT((other == rank || std::find(shard.begin(), shard.end(), other) == shard.end()));
      }
    }
  }));
}

TEST_CASE("layout: equality is equality of what the ranks hold", "[unit][layout][property]") {
  CHECK(rc::check("equality", [] {
    const Case c = random_case(1, 2);
    // the same mesh with one more dim of size 1, and other names
    List shape = c.mesh;
    shape.push_back(1);
    std::vector<std::string> names;
    for (size_t k = 0; k < shape.size(); ++k) names.push_back(cat("name", k));
    const auto mesh = std::make_shared<const Mesh>(shape, names, c.layout.mesh().ranks());
    std::vector<Cut> cuts = c.layout.cuts();
    cuts.push_back({{static_cast<int>(c.mesh.size())}, 0, 3, 2});
    const Layout a = Layout::from_cuts(c.layout.shared_mesh(), c.shape, c.layout.cuts());
    const Layout b = Layout::from_cuts(mesh, c.shape, cuts);
    RC_ASSERT(a == b);
    RC_ASSERT(a.hash() == b.hash());
    // another split factor: equal exactly if every list is
    if (a.cuts().empty()) return;
    cuts = a.cuts();
    cuts[0].split_factor = pick(1, 5);
    const Layout d = Layout::from_cuts(c.layout.shared_mesh(), c.shape, cuts);
    bool equal = true;
    for (const int rank : mesh->ranks()) {
      for (int k = 0; k < a.dims(); ++k) equal = equal && a.runs(rank, k) == d.runs(rank, k);
    }
    RC_ASSERT((a == d) == equal);
    if (a.hash() == d.hash()) RC_ASSERT(equal);
  }));
}

TEST_CASE("layout: the parts of a matrix hold its elements, counted from their own start",
          "[unit][layout][property]") {
  CHECK(rc::check("parts", [] {
    const Case c = random_case(2, 2);
    const auto random_list = [](int64_t n) {
      Runs out;
      for (int64_t at = pick(0, 3); at < n;) {
        const int64_t end = std::min(n, at + pick(1, 4));
        out.push_back({at, end});
        at = end + pick(1, 3);
      }
      return out;
    };
    const Runs rows = random_list(c.shape[0]), cols = random_list(c.shape[1]);
    for (const auto& [rank, held] : c.held) {
      const auto blocks = blocks_of_part(blocks_of(c.layout, rank), rows, cols);
      List got(held.size(), -1), want(held.size(), -1);
      RC_ASSERT(random_layout::read_blocks(blocks, length(cols), 0, got));
      for (size_t i = 0; i < held.size(); ++i) {
        const int64_t r = position_of(rows, held[i] / c.shape[1]);
        const int64_t k = position_of(cols, held[i] % c.shape[1]);
        if (r >= 0 && k >= 0) want[i] = r * length(cols) + k;
      }
      RC_ASSERT(got == want);
    }
  }));
}
