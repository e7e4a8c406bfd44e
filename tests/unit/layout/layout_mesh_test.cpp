#include <catch2/catch.hpp>

#include "base/error.hpp"
#include "layout/mesh.hpp"

using namespace muonrt;

using Names = std::vector<std::string>;
using Sizes = std::vector<int64_t>;

TEST_CASE("mesh: without a rank array the last dim is the fastest", "[unit][layout]") {
  const Mesh mesh({2, 3}, {"dp", "tp"});
  CHECK(mesh.size() == 6);
  CHECK(mesh.rank_at({0, 0}) == 0);
  CHECK(mesh.rank_at({0, 2}) == 2);
  CHECK(mesh.rank_at({1, 0}) == 3);
  CHECK(mesh.coords(4) == Sizes{1, 1});
  CHECK_FALSE(mesh.coords(6).has_value());
  CHECK_FALSE(mesh.coords(-1).has_value());
  CHECK(mesh.dim_of("tp") == 1);
  CHECK(mesh.describe() == "dp=2, tp=3");
}

TEST_CASE("mesh: coordinates are the position of a rank in the array", "[unit][layout]") {
  const Mesh mesh({2, 2}, {}, {7, 0, 9, 4});
  CHECK(mesh.names() == Names{"d0", "d1"});
  CHECK(mesh.coords(7) == Sizes{0, 0});
  CHECK(mesh.coords(0) == Sizes{0, 1});
  CHECK(mesh.coords(9) == Sizes{1, 0});
  CHECK(mesh.coords(4) == Sizes{1, 1});
  for (const int rank : {1, 2, 3, 5, 6, 8, 10, -1}) CHECK_FALSE(mesh.coords(rank).has_value());
  for (const int rank : mesh.ranks()) CHECK(mesh.rank_at(*mesh.coords(rank)) == rank);
}

TEST_CASE("mesh: no dims are one rank", "[unit][layout]") {
  CHECK(Mesh().size() == 1);
  CHECK(Mesh().ranks() == std::vector<int32_t>{0});
  CHECK(Mesh().rank_at({}) == 0);
  CHECK(Mesh(Sizes{}, {}, {3}).coords(3) == Sizes{});
  CHECK(Mesh().describe() == "one rank");
}

TEST_CASE("mesh: shards over some dims are row-major in the order given", "[unit][layout]") {
  const Mesh mesh({2, 3, 4});
  const int64_t position = 1 * 12 + 2 * 4 + 3;
  CHECK(mesh.coord(position, 0) == 1);
  CHECK(mesh.coord(position, 1) == 2);
  CHECK(mesh.coord(position, 2) == 3);
  CHECK(mesh.index_over({0, 2}, position) == 1 * 4 + 3);
  CHECK(mesh.index_over({2, 0}, position) == 3 * 2 + 1);
  CHECK(mesh.index_over({}, position) == 0);
  CHECK(mesh.count_over({2, 0}) == 8);
  CHECK(mesh.count_over({}) == 1);
  CHECK(mesh.offset_over({2, 0}, 3 * 2 + 1) == 1 * 12 + 3);
  for (int64_t shard = 0; shard < 8; ++shard) {
    CHECK(mesh.index_over({2, 0}, mesh.offset_over({2, 0}, shard)) == shard);
  }
}

TEST_CASE("mesh: the hash depends on ranks, but not on names and sizes of 1", "[unit][layout]") {
  CHECK(Mesh({2, 2}, {"a", "b"}).hash() == Mesh({2, 1, 2}).hash());
  CHECK(Mesh({2, 2}).hash() != Mesh({4}).hash());
  CHECK(Mesh({2, 2}).hash() != Mesh({2, 2}, {}, {0, 2, 1, 3}).hash());
  CHECK(Mesh({2, 2}) == Mesh({2, 2}, {"x", "y"}, {0, 1, 2, 3}));
  CHECK_FALSE(Mesh({2, 2}) == Mesh({2, 2}, {}, {0, 2, 1, 3}));
}

TEST_CASE("mesh: invalid meshes are rejected with the value", "[unit][layout]") {
  using Catch::Contains;
  CHECK_THROWS_WITH(Mesh({2, 0}), Contains("dim 1 has size 0"));
  CHECK_THROWS_WITH(Mesh({-1}), Contains("dim 0 has size -1"));
  CHECK_THROWS_WITH(Mesh({1 << 20, 1 << 20}), Contains("more than"));
  CHECK_THROWS_WITH(Mesh({int64_t{1} << 62, 4}), Contains("more than"));
  CHECK_THROWS_WITH(Mesh({2, 2}, {"dp"}), Contains("1 names for 2 dims"));
  CHECK_THROWS_WITH(Mesh({2, 2}, {"dp", "dp"}), Contains("named 'dp'"));
  CHECK_THROWS_WITH(Mesh({2, 2}, {"dp", ""}), Contains("dim 1 is empty"));
  CHECK_THROWS_WITH(Mesh({2, 2}, {}, {0, 1, 2}), Contains("3 ranks for 4 positions"));
  CHECK_THROWS_WITH(Mesh({2, 2}, {}, {0, 1, 2, 1}), Contains("rank 1 occurs at positions 1 and 3"));
  CHECK_THROWS_WITH(Mesh({2}, {}, {0, -3}), Contains("rank -3 at position 1"));
  CHECK_THROWS_WITH(Mesh({2, 2}, {"dp", "tp"}).dim_of("cp"),
                    Contains("no dim 'cp'") && Contains("[dp, tp]"));
  CHECK_THROWS_WITH(Mesh({2, 2}).rank_at({0, 2}), Contains("coordinate 2"));
  CHECK_THROWS_WITH(Mesh({2, 2}).rank_at({0}), Contains("1 coordinates"));
  try {
    Mesh({2, 0});
    FAIL();
  } catch (const Error& error) {
    CHECK(error.status() == Status::kInvalidArgument);
  }
}
