#include <catch2/catch.hpp>

#include "base/error.hpp"
#include "layout/blocks.hpp"
#include "layout/holders.hpp"
#include "layout/layout.hpp"

using namespace muonrt;
using Catch::Contains;
using Sizes = std::vector<int64_t>;
using MeshPtr = std::shared_ptr<const Mesh>;

namespace {

MeshPtr mesh(Sizes shape, std::vector<std::string> names = {}, std::vector<int32_t> ranks = {}) {
  return std::make_shared<const Mesh>(std::move(shape), std::move(names), std::move(ranks));
}

}  // namespace

TEST_CASE("layout: a flat range over whole rows equals the same row bounds", "[unit][layout]") {
  const MeshPtr m = mesh({3});
  const Layout rows = Layout::with_row_bounds(m, {4, 3}, {}, {0}, 0, {0, 1, 3, 4});
  CHECK(Layout::with_flat(m, {4, 3}, {}, {0}, {{0, 3}, {3, 9}, {9, 12}}) == rows);
  CHECK_FALSE(Layout::with_flat(m, {4, 3}, {}, {0}, {{0, 4}, {4, 9}, {9, 12}}) == rows);
  CHECK(Layout::with_flat(m, {7}, {}, {0}, {{0, 3}, {3, 6}, {6, 7}}) ==
        Layout::from_cuts(m, {7}, {{{0}, 0}}));
  CHECK(Layout::with_owner(m, {4, 3}, {0}, 1) ==
        Layout::with_row_bounds(m, {4, 3}, {}, {0}, 0, {0, 0, 4, 4}));
  CHECK(Layout::with_flat(m, {2, 2, 3}, {}, {0}, {{0, 6}, {6, 6}, {6, 12}}) ==
        Layout::with_row_bounds(m, {2, 2, 3}, {}, {0}, 0, {0, 1, 1, 2}));
}

TEST_CASE("layout: equality compares ranks, shape, partial dims and lists, not the definition",
          "[unit][layout]") {
  const Layout l = Layout::from_cuts(mesh({2, 2}), {8, 4}, {{{0}, 0}, {{1}, 0}});
  CHECK(l == Layout::from_cuts(mesh({4}), {8, 4}, {{{0}, 0}}));
  CHECK(l == Layout::from_cuts(mesh({2, 2}, {}, {0, 2, 1, 3}), {8, 4}, {{{1}, 0}, {{0}, 0}}));
  CHECK_FALSE(l == Layout::from_cuts(mesh({4}, {}, {1, 0, 2, 3}), {8, 4}, {{{0}, 0}}));
  CHECK_FALSE(l == Layout::from_cuts(mesh({4}, {}, {0, 1, 2, 7}), {8, 4}, {{{0}, 0}}));
  CHECK_FALSE(l == Layout::from_cuts(mesh({4}), {4, 8}, {{{0}, 0}}));
  CHECK_FALSE(l == Layout::from_cuts(mesh({5}), {8, 4}, {{{0}, 0}}));
  const Layout replicated = Layout::from_cuts(mesh({2}), {3}, {});
  CHECK_FALSE(replicated == Layout::from_cuts(mesh({2}), {3}, {}, {0}));
  CHECK_FALSE(replicated.hash() == Layout::from_cuts(mesh({2}), {3}, {}, {0}).hash());
}

TEST_CASE("layout: partial gradients are numbered by mesh coordinates", "[unit][layout]") {
  const Layout l = Layout::from_cuts(mesh({2, 3, 2}, {}, {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11, 10}),
                                     {6}, {{{1}, 0}}, {2, 0});
  CHECK(l.partial_dims() == std::vector<int>{0, 2});
  CHECK(l.replica_dims() == std::vector<int>{0, 2});
  CHECK(l.partial_count() == 4);
  CHECK(l.partial_index(9) == 0);
  CHECK(l.partial_index(8) == 1);
  CHECK(l.partial_index(3) == 2);
  CHECK(l.partial_index(10) == 3);
  CHECK(l.replica_group(9) == std::vector<int>{9, 8, 3, 2});
  CHECK(l.local_numel(9) == 2);
  CHECK(l.describe() == "S(0) over d1=3, P over d0=2, P over d2=2");
}

TEST_CASE("layout: weights of more than two dims are matrices only on request", "[unit][layout]") {
  // The dimensions are 4 outputs, 2 inputs and a kernel of 3 x 3. Outputs are sharded over the
  // first mesh dimension, and inputs over the second one.
  const Layout l = Layout::from_cuts(mesh({2, 2}), {4, 2, 3, 3}, {{{0}, 0}, {{1}, 1}});
  CHECK_THROWS_WITH(blocks_of(l, 0), Contains("is not a matrix"));
  const Layout m = l.as_matrix();
  CHECK(m.shape() == Sizes{4, 18});
  CHECK(m.local_shape(3) == Sizes{2, 9});
  CHECK(m.runs(3, 1) == Runs{{9, 18}});
  // The tensor has 2 layers x 2 experts x (2 x 3). Experts are sharded over mesh dimension 1, so
  // rank 1 has expert 1 of both layers.
  const Layout s = Layout::from_cuts(mesh({1, 2}), {2, 2, 2, 3}, {{{1}, 1}}).viewed(2, 1);
  CHECK(s.shape() == Sizes{4, 2, 3});
  CHECK(holders_of(s, 3).replicas == std::vector<std::vector<int>>{{1}});
  CHECK(blocks_of_matrix(s, 1, 3) == std::vector<Block>{{0, 0, 2, 3, 6, 3}});
  CHECK_THROWS_WITH(s.viewed(2, 2), Contains("2 dims of a stack and 2 of rows"));
}

TEST_CASE("layout: scalars and empty tensors have holders", "[unit][layout]") {
  CHECK(Layout().numel() == 1);
  CHECK(Layout().local_numel(0) == 1);
  CHECK(Layout().describe() == "whole on one rank");
  const Layout empty = Layout::from_cuts(mesh({2}), {0, 5}, {{{0}, 1}});
  CHECK(empty.numel() == 0);
  CHECK(empty.local_shape(0) == Sizes{0, 3});
  CHECK(blocks_of(empty, 0).empty());
  CHECK(blocks_of(Layout::with_flat(mesh({2}), {0, 5}, {}, {0}, {{0, 0}, {0, 0}}), 1).empty());
}

TEST_CASE("layout: describe lists the cuts, outermost first", "[unit][layout]") {
  const MeshPtr m = mesh({2, 4, 3}, {"dp", "fsdp", "tp"});
  CHECK(Layout::from_cuts(m, {9, 9}, {{{1}, 0}}).describe() ==
        "S(0) over fsdp=4, R over dp=2, R over tp=3");
  CHECK(Layout::from_cuts(m, {9, 9}, {{{2}, -1, 2, 16}, {{0, 1}, 0}}).describe() ==
        "SS(1,2) by 16 over tp=3, then S(0) over dp*fsdp=8");
  CHECK(Layout::with_owner(m, {9}, {1}, 3, {}, {0, 2}).describe() ==
        "whole on shard 3 of fsdp=4, P over dp=2, P over tp=3");
  CHECK(Layout::with_row_bounds(m, {8}, {{{0}, 0}}, {2}, 0, {0, 0, 3, 4}).describe() ==
        "S(0) over dp=2, then bounds [0, 0, 3, 4] of dim 0 over tp=3, R over fsdp=4");
  CHECK(Layout::with_flat(m, {8}, {}, {0}, {{0, 3}, {3, 8}}).describe() ==
        "flat ranges over dp=2, R over fsdp=4, R over tp=3");
}

TEST_CASE("layout: invalid definitions are rejected with the value", "[unit][layout]") {
  const MeshPtr m = mesh({2, 3}, {"dp", "tp"});
  CHECK_THROWS_WITH(Layout::from_cuts(nullptr, {2}, {}), Contains("mesh is missing"));
  CHECK_THROWS_WITH(Layout::from_placements(nullptr, {2}, {}, Reading::kLiteral),
                    Contains("mesh is missing"));
  CHECK_THROWS_WITH(Layout::from_cuts(m, {2, -1}, {}), Contains("dim 1 is negative"));
  CHECK_THROWS_WITH(Layout::from_cuts(m, {int64_t{1} << 40, int64_t{1} << 40}, {}),
                    Contains("does not fit"));
  CHECK_THROWS_WITH(Layout::from_cuts(m, {4}, {{{}, 0}}), Contains("names no mesh dim"));
  CHECK_THROWS_WITH(Layout::from_cuts(m, {4}, {{{2}, 0}}), Contains("mesh dim 2"));
  CHECK_THROWS_WITH(Layout::from_cuts(m, {4}, {{{0}, 0}, {{0}, 0}}), Contains("'dp'"));
  CHECK_THROWS_WITH(Layout::from_cuts(m, {4}, {{{0}, 0}}, {0}), Contains("'dp'"));
  CHECK_THROWS_WITH(Layout::from_cuts(m, {4}, {}, {5}), Contains("mesh dim 5"));
  CHECK_THROWS_WITH(Layout::from_cuts(m, {4}, {{{0}, 1}}), Contains("tensor dim 1"));
  CHECK_THROWS_WITH(Layout::from_cuts(m, {}, {{{0}, 0}}), Contains("a scalar"));
  CHECK_THROWS_WITH(Layout::from_cuts(m, {4}, {{{0}, 0, 0}}), Contains("split factor 0"));
  CHECK_THROWS_WITH(Layout::from_cuts(m, {4}, {{{0}, 0, 1, 0}}), Contains("unit 0"));
  CHECK_THROWS_WITH(Layout::from_cuts(m, {1 << 30}, {{{0}, 0, 1 << 29}}), Contains("groups"));
  CHECK_THROWS_WITH(Layout::with_row_bounds(m, {7}, {}, {1}, 0, {0, 3, 7}),
                    Contains("3 values for 3 shards"));
  CHECK_THROWS_WITH(Layout::with_row_bounds(m, {7}, {}, {1}, 0, {0, 4, 3, 7}),
                    Contains("do not ascend"));
  CHECK_THROWS_WITH(Layout::with_row_bounds(m, {7}, {}, {1}, 0, {1, 4, 5, 7}),
                    Contains("do not ascend from 0"));
  CHECK_THROWS_WITH(Layout::with_row_bounds(m, {7}, {}, {1}, 0, {0, 4, 5, 6}),
                    Contains("end at 6") && Contains("has 7"));
  CHECK_THROWS_WITH(Layout::with_row_bounds(m, {7}, {{{0}, 0}}, {1}, 0, {0, 4, 4, 4}),
                    Contains("end at 4") && Contains("has 3"));
  CHECK_THROWS_WITH(Layout::with_owner(m, {7}, {1}, 3), Contains("shard 3"));
  CHECK_THROWS_WITH(Layout::with_flat(m, {9}, {}, {1}, {{0, 4}, {4, 9}}),
                    Contains("2 ranges for 3"));
  CHECK_THROWS_WITH(Layout::with_flat(m, {9}, {}, {1}, {{0, 4}, {5, 9}, {9, 9}}),
                    Contains("[5, 9) leaves a gap after") && Contains("at 4"));
  CHECK_THROWS_WITH(Layout::with_flat(m, {9}, {}, {1}, {{0, 4}, {3, 9}, {9, 9}}),
                    Contains("[3, 9) overlaps"));
  CHECK_THROWS_WITH(Layout::with_flat(m, {9}, {}, {1}, {{0, 4}, {4, 8}, {8, 8}}),
                    Contains("end at 8") && Contains("9 elements"));
  CHECK_THROWS_WITH(Layout::with_flat(m, {9}, {}, {1}, {{0, 4}, {4, 12}, {12, 9}}),
                    Contains("[12, 9)"));
  CHECK_THROWS_WITH(Layout::with_flat(m, {5, 2}, {{{1}, 0}}, {0}, {{0, 5}, {5, 6}}),
                    Contains("end at 6") && Contains("4 elements"));
  const Layout l = Layout::from_cuts(m, {4, 4, 4}, {});
  CHECK_THROWS_WITH(l.rank_of(6, 0), Contains("replica 6"));
  CHECK_THROWS_WITH(l.runs(0, 3), Contains("tensor dim 3"));
  CHECK_THROWS_WITH(l.locate(0, 4), Contains("index 4"));
  CHECK_THROWS_WITH(blocks_of_matrix(l, 0, 4), Contains("no matrix 4"));
  CHECK_THROWS_WITH(holders_of(l, -1), Contains("no matrix -1"));
  CHECK_THROWS_WITH(holders_of(Layout::from_cuts(m, {1, 1, 1, 1}, {}), 0), Contains("neither"));
  CHECK_THROWS_WITH(blocks_of_matrix(Layout::from_cuts(m, {4, 4}, {}), 0, 0),
                    Contains("not a stack"));
}
