#include <catch2/catch.hpp>

#include "base/error.hpp"
#include "layout/blocks.hpp"
#include "layout/holders.hpp"
#include "layout/parse.hpp"
#include "unit/layout_vectors.hpp"

using namespace muonrt;
using vectors::Vector;

namespace {

std::shared_ptr<const Mesh> mesh_of(const Vector& v, std::vector<int32_t> ranks = {}) {
  return std::make_shared<const Mesh>(v.mesh, std::vector<std::string>{}, std::move(ranks));
}

Layout from_steps(const Vector& v) {
  return Layout::from_cuts(mesh_of(v), v.shape, naive::cuts(v.steps));
}

const Vector& find(const std::string& name) {
  static const std::vector<Vector> list = vectors::all();
  for (const Vector& v : list) {
    if (v.name == name) return v;
  }
  throw std::runtime_error("no vector " + name);
}

void check_table(const Vector& v, const Layout& layout) {
  const auto table = vectors::table_of(v);
  REQUIRE(std::ssize(table) == layout.mesh().size());
  for (size_t p = 0; p < table.size(); ++p) {
    const int rank = layout.mesh().ranks()[p];
    int64_t numel = 1;
    for (size_t d = 0; d < v.shape.size(); ++d) {
      INFO(v.name << ", position " << p << ", dim " << d);
      CHECK(naive::expand(layout.runs(rank, static_cast<int>(d))) == table[p][d]);
      CHECK(layout.local_shape(rank)[d] == std::ssize(table[p][d]));
      numel *= std::ssize(table[p][d]);
    }
    CHECK(layout.local_numel(rank) == numel);
  }
}

}  // namespace

TEST_CASE("layout: every worked example comes out to the index from its cuts", "[unit][layout]") {
  for (const Vector& v : vectors::all()) check_table(v, from_steps(v));
}

TEST_CASE("layout: every worked example comes out to the index from its placements",
          "[unit][layout]") {
  for (const Vector& v : vectors::all()) {
    if (v.placements.empty()) continue;
    check_table(v, Layout::from_placements(mesh_of(v), v.shape, parse_placements(v.placements),
                                           parse_reading(v.reading), v.flat_dims));
  }
}

TEST_CASE("layout: coordinates come from the rank array, not from a formula", "[unit][layout]") {
  for (const Vector& v : vectors::all()) {
    const auto mesh = mesh_of(v, vectors::scattered_ranks(naive::size_of(v.mesh)));
    const Layout layout = Layout::from_cuts(mesh, v.shape, naive::cuts(v.steps));
    check_table(v, layout);
    const int outside = 4;  // 5 + 3 i never is 4
    CHECK_FALSE(layout.holds_mesh_rank(outside));
    CHECK(layout.local_numel(outside) == 0);
    CHECK(layout.local_shape(outside) == std::vector<int64_t>(v.shape.size(), 0));
    for (int d = 0; d < layout.dims(); ++d) CHECK(layout.runs(outside, d).empty());
    CHECK(layout.shard_group(outside).empty());
    CHECK(layout.shard_index(outside) == -1);
  }
}

TEST_CASE("layout: the readings of one set of placements are equal or not as worked out",
          "[unit][layout]") {
  const auto equal = [](const char* literal, const char* ordered) {
    return from_steps(find(literal)) == from_steps(find(ordered));
  };
  CHECK(equal("E5", "E5 ordered"));
  CHECK(equal("E6a", "E6a ordered"));
  CHECK(equal("E6b", "E6b ordered"));
  CHECK(equal("E10c literal", "E10c ordered"));
  CHECK(equal("E11", "E11 ordered"));
  CHECK_FALSE(equal("E4a", "E4b"));
  CHECK_FALSE(equal("E4c literal", "E4c physical"));
  CHECK_FALSE(equal("E7 literal", "E7 physical"));
  CHECK_FALSE(equal("E10b literal", "E10b ordered"));
  CHECK_FALSE(equal("E10d literal", "E10d ordered"));
}

TEST_CASE("layout: E10d has equal sizes everywhere and different rows", "[unit][layout]") {
  const Layout literal = from_steps(find("E10d literal")),
               ordered = from_steps(find("E10d ordered"));
  for (int rank = 0; rank < 12; ++rank) {
    CHECK(literal.local_numel(rank) == ordered.local_numel(rank));
  }
  CHECK_FALSE(literal == ordered);
}

TEST_CASE("layout: E3 has the shard and replica groups of HSDP", "[unit][layout]") {
  const Layout layout = from_steps(find("E3"));
  for (const int rank : {0, 1, 2}) CHECK(layout.shard_group(rank) == std::vector<int>{0, 1, 2});
  for (const int rank : {3, 4, 5}) CHECK(layout.shard_group(rank) == std::vector<int>{3, 4, 5});
  CHECK(layout.replica_group(0) == std::vector<int>{0, 3});
  CHECK(layout.replica_group(4) == std::vector<int>{1, 4});
  CHECK(layout.replica_group(2) == std::vector<int>{2, 5});
  CHECK(layout.shard_count() == 3);
  CHECK(layout.replicas() == 2);
  CHECK(layout.rank_of(1, 2) == 5);
}

TEST_CASE("layout: E13 puts experts on four of six ranks", "[unit][layout]") {
  const Layout layout = from_steps(find("E13"));
  CHECK(matrix_count(layout) == 8);
  const int holder[] = {0, 0, 2, 2, 1, 1, 3, 3};
  for (int64_t e = 0; e < 8; ++e) {
    const MatrixHolders held = holders_of(layout, e);
    REQUIRE(held.replicas.size() == 1);
    CHECK(held.replicas[0] == std::vector<int>{holder[e]});
    CHECK(matrix_layout(layout, e).mesh().ranks() == std::vector<int32_t>{holder[e]});
    for (int rank = 0; rank < 6; ++rank) {
      const std::vector<Block> blocks = blocks_of_matrix(layout, rank, e);
      if (rank == holder[e]) {
        CHECK(blocks == std::vector<Block>{{0, 0, 4, 6, e % 2 * 24, 6}});
      } else {
        CHECK(blocks.empty());
      }
    }
  }
  CHECK(layout.local_shape(4) == std::vector<int64_t>{0, 4, 6});
}

TEST_CASE("layout: E14 splits into experts on the submeshes of the example", "[unit][layout]") {
  const Layout layout = from_steps(find("E14"));
  for (int64_t e = 0; e < 4; ++e) {
    const std::vector<int32_t> ranks =
        e < 2 ? std::vector<int32_t>{0, 1, 4, 5} : std::vector<int32_t>{2, 3, 6, 7};
    const Layout matrix = matrix_layout(layout, e);
    CHECK(matrix.shape() == std::vector<int64_t>{8, 6});
    CHECK(matrix.mesh().shape() == std::vector<int64_t>{2, 2});
    CHECK(matrix.mesh().ranks() == ranks);
    CHECK(matrix ==
          Layout::from_placements(std::make_shared<const Mesh>(std::vector<int64_t>{2, 2},
                                                               std::vector<std::string>{}, ranks),
                                  {8, 6}, parse_placements("SS(0,2),S(0)"), Reading::kLiteral));
    CHECK(holders_of(layout, e).replicas[0] == std::vector<int>(ranks.begin(), ranks.end()));
    CHECK(holder_class(layout, e) == holder_class(layout, e < 2 ? 0 : 2));
  }
  CHECK(holder_class(layout, 0) != holder_class(layout, 2));
  // rank 5 holds rows 6 and 7 of expert 1, after 2 x 6 elements of expert 0
  CHECK(blocks_of_matrix(layout, 5, 1) == std::vector<Block>{{6, 0, 2, 6, 12, 6}});
}

TEST_CASE("layout: E17 gives the rows of Q, K and V, counted from their own first row",
          "[unit][layout]") {
  const Layout layout = from_steps(find("E17"));
  const Runs q = {{0, 8}}, k = {{8, 10}}, v = {{10, 12}};
  using naive::List;
  const auto rows = [&](const Runs& part, int rank) {
    List out;
    for (const int64_t i : naive::expand(layout.runs(rank, 0))) {
      if (position_of(part, i) >= 0) out.push_back(position_of(part, i));
    }
    return out;
  };
  CHECK(rows(q, 0) == List{0, 1, 2});
  CHECK(rows(q, 1) == List{3, 4, 5});
  CHECK(rows(q, 2) == List{6, 7});
  CHECK(rows(q, 3).empty());
  CHECK(rows(k, 0).empty());
  CHECK(rows(k, 1).empty());
  CHECK(rows(k, 2) == List{0});
  CHECK(rows(k, 3) == List{1});
  CHECK(rows(v, 0).empty());
  CHECK(rows(v, 1).empty());
  CHECK(rows(v, 2).empty());
  CHECK(rows(v, 3) == List{0, 1});
}

TEST_CASE("layout: E18 cuts a matrix into flat slices that end inside rows", "[unit][layout]") {
  const auto mesh = std::make_shared<const Mesh>(std::vector<int64_t>{3});
  const Layout layout = Layout::with_flat(mesh, {4, 3}, {}, {0}, {{0, 4}, {4, 8}, {8, 12}});
  CHECK_FALSE(layout.product_form());
  CHECK(layout.local_shape(1) == std::vector<int64_t>{4});
  CHECK(layout.flat_range(2) == std::pair<int64_t, int64_t>{8, 12});
  CHECK(blocks_of(layout, 0) == std::vector<Block>{{0, 0, 1, 3, 0, 3}, {1, 0, 1, 1, 3, 1}});
  CHECK(blocks_of(layout, 1) == std::vector<Block>{{1, 1, 1, 2, 0, 2}, {2, 0, 1, 2, 2, 2}});
  CHECK(blocks_of(layout, 2) == std::vector<Block>{{2, 2, 1, 1, 0, 1}, {3, 0, 1, 3, 1, 3}});
  CHECK_THROWS_AS(layout.runs(0, 0), Error);
}
