#include <catch2/catch.hpp>

#include "layout/blocks.hpp"
#include "layout/holders.hpp"
#include "layout/parse.hpp"

using namespace muonrt;
using Blocks = std::vector<Block>;  // each block is {row, col, rows, cols, local_offset, local_ld}
using Sizes = std::vector<int64_t>;

namespace {

std::shared_ptr<const Mesh> mesh(Sizes shape) {
  return std::make_shared<const Mesh>(std::move(shape));
}

Layout placed(Sizes mesh_shape, Sizes shape, const char* text) {
  return Layout::from_placements(mesh(std::move(mesh_shape)), std::move(shape),
                                 parse_placements(text), Reading::kLiteral);
}

}  // namespace

TEST_CASE("blocks: a shard has one block for each pair of its runs", "[unit][layout]") {
  struct Row {
    Sizes mesh, shape;
    const char* placements;
    int rank;
    Blocks blocks;
  };
  for (const Row& row : {
           Row{{4}, {10, 6}, "S(0)", 1, {{3, 0, 3, 6, 0, 6}}},
           Row{{4}, {10, 6}, "S(0)", 3, {{9, 0, 1, 6, 0, 6}}},
           Row{{4}, {10, 6}, "S(1)", 1, {{0, 2, 10, 2, 0, 2}}},
           Row{{4}, {10, 6}, "S(1)", 3, {}},
           Row{{4}, {10, 6}, "R", 2, {{0, 0, 10, 6, 0, 6}}},
           Row{{2, 2}, {5, 6}, "S(0),S(1)", 3, {{3, 3, 2, 3, 0, 3}}},
           Row{{2}, {8, 3}, "SS(0,2)", 1, {{2, 0, 2, 3, 0, 3}, {6, 0, 2, 3, 6, 3}}},
           // The local shard is 4 x 4 and has rows 0, 1, 4, 5 and columns 2, 3, 6, 7.
           Row{{2, 2},
               {8, 8},
               "SS(0,2),SS(1,2)",
               1,
               {{0, 2, 2, 2, 0, 4}, {0, 6, 2, 2, 2, 4}, {4, 2, 2, 2, 8, 4}, {4, 6, 2, 2, 10, 4}}},
           // A tensor with one dimension is treated as one row, and a scalar as one element.
           Row{{4}, {10}, "S(0)", 3, {{0, 9, 1, 1, 0, 1}}},
           Row{{2}, {8}, "SS(0,2)", 0, {{0, 0, 1, 2, 0, 2}, {0, 4, 1, 2, 2, 2}}},
           Row{{2}, {}, "R", 1, {{0, 0, 1, 1, 0, 1}}},
       }) {
    INFO(row.placements << " on rank " << row.rank);
    CHECK(blocks_of(placed(row.mesh, row.shape, row.placements), row.rank) == row.blocks);
  }
}

TEST_CASE("blocks: a flat range is the end of a row, whole rows, and the start of a row",
          "[unit][layout]") {
  const auto flat = [](int64_t begin, int64_t end) {
    const Layout l =
        Layout::with_flat(mesh({3}), {5, 4}, {}, {0}, {{0, begin}, {begin, end}, {end, 20}});
    return blocks_of(l, 1);
  };
  CHECK(flat(2, 18) == Blocks{{0, 2, 1, 2, 0, 2}, {1, 0, 3, 4, 2, 4}, {4, 0, 1, 2, 14, 2}});
  CHECK(flat(4, 16) == Blocks{{1, 0, 3, 4, 0, 4}});
  CHECK(flat(5, 7) == Blocks{{1, 1, 1, 2, 0, 2}});
  CHECK(flat(5, 8) == Blocks{{1, 1, 1, 3, 0, 3}});
  CHECK(flat(3, 5) == Blocks{{0, 3, 1, 1, 0, 1}, {1, 0, 1, 1, 1, 1}});
  CHECK(flat(7, 7).empty());
}

TEST_CASE("blocks: sizes above 2^31 and meshes of 1024 ranks cost no more than small ones",
          "[unit][layout]") {
  // The layout has 2^58 elements, so the test would not end if the cost grew with the number of
  // elements.
  const int64_t e = 1 << 10, r = int64_t{1} << 28, c = int64_t{1} << 20;
  const Layout l = placed({16, 8, 8}, {e, r, c}, "S(2),SS(1,3),S(0)");
  CHECK(l.numel() == int64_t{1} << 58);
  CHECK(l.shard_group(5).size() == 1024);
  const std::vector<int> ranks = holders_of(l, 700).replicas[0];
  CHECK(ranks.size() == 128);
  int64_t sum = 0;
  for (const int rank : ranks) {
    for (const Block& b : blocks_of_matrix(l, rank, 700)) sum += b.numel();
  }
  CHECK(sum == r * c);
}
