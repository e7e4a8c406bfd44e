#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "base/error.hpp"
#include "layout/layout.hpp"
#include "layout/parse.hpp"

using namespace muonrt;

namespace {

using Order = std::vector<int>;

/// Returns placements of a 1-D tensor that is cut over the mesh dimensions in `order`, outermost
/// first. The split factors encode this order. All other mesh dimensions replicate the tensor.
std::vector<Placement> encode(const Mesh& mesh, const Order& order) {
  std::vector<Placement> out(static_cast<size_t>(mesh.dims()));
  for (size_t t = 0; t < order.size(); ++t) {
    // The factor is the product of the sizes of all mesh dimensions that are to the right of this
    // one and cut the tensor earlier.
    int64_t factor = 1;
    for (size_t s = 0; s < t; ++s) {
      if (order[s] > order[t]) factor *= mesh.shape()[static_cast<size_t>(order[s])];
    }
    out[static_cast<size_t>(order[t])] = {
        factor == 1 ? PlacementKind::kShard : PlacementKind::kStridedShard, 0, factor};
  }
  return out;
}

Layout literal(const Mesh& mesh, int64_t n, const std::string& placements) {
  return Layout::from_placements(std::make_shared<const Mesh>(mesh), {n},
                                 parse_placements(placements), Reading::kLiteral);
}

Layout ordered(const Mesh& mesh, int64_t n, const std::string& placements,
               const Order& flat_dims = {}) {
  return Layout::from_placements(std::make_shared<const Mesh>(mesh), {n},
                                 parse_placements(placements), Reading::kOrdered, flat_dims);
}

}  // namespace

TEST_CASE("placement: decode is the inverse of encode for every order of every small mesh",
          "[unit][layout]") {
  int64_t cases = 0;
  for (int dims = 1; dims <= 4; ++dims) {
    for (int64_t code = 0; code < 1 << (2 * dims); ++code) {
      std::vector<int64_t> shape;
      for (int k = 0; k < dims; ++k) shape.push_back(2 + (code >> (2 * k)) % 4);
      const Mesh mesh(shape);
      Order order(static_cast<size_t>(dims));
      std::iota(order.begin(), order.end(), 0);
      do {
        for (int used = 1; used <= dims; ++used) {
          const Order part(order.begin(), order.begin() + used);
          const auto back = decode_order(mesh, 1, encode(mesh, part));
          REQUIRE(back.has_value());
          REQUIRE((*back)[0] == part);
          ++cases;
        }
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
  CHECK(cases == 1 * 4 * 1 + 2 * 16 * 2 + 3 * 64 * 6 + 4 * 256 * 24);
}

TEST_CASE("placement: mesh dims of size 1 decode with any split factor", "[unit][layout]") {
  const Mesh mesh({1, 4, 1});
  for (const char* text : {"SS(0,4),S(0),R", "SS(0,7),S(0),SS(0,3)", "S(0),S(0),S(0)"}) {
    INFO(text);
    CHECK(ordered(mesh, 10, text) == literal(mesh, 10, text));
    CHECK(ordered(mesh, 10, text).runs(3, 0) == Runs{{9, 10}});
  }
}

TEST_CASE("placement: the ordered reading rejects split factors that encode no order",
          "[unit][layout]") {
  const Mesh mesh({2, 2});
  CHECK_FALSE(decode_order(mesh, 1, parse_placements("S(0),SS(0,2)")).has_value());
  CHECK_FALSE(decode_order(mesh, 1, parse_placements("SS(0,4),R")).has_value());
  CHECK_THROWS_WITH(ordered(mesh, 16, "S(0),SS(0,2)"),
                    Catch::Contains("S(0),SS(0,2)") && Catch::Contains("no shard order"));
  CHECK_NOTHROW(literal(mesh, 16, "S(0),SS(0,2)"));
}

TEST_CASE("placement: with FSDP dims named, the model cuts come first with their split factors",
          "[unit][layout]") {
  const Mesh mesh({2, 2, 3}, {"dp", "cp", "tp"});
  const auto cuts = [&](const char* text, const Order& flat) {
    return cuts_from_placements(mesh, 2, parse_placements(text), Reading::kOrdered, flat);
  };
  CHECK(cuts("SS(0,3),SS(0,3),S(0)", {0, 1}) ==
        std::vector<Cut>{{{2}, 0, 1, 1}, {{0, 1}, 0, 1, 1}});
  CHECK(cuts("SS(0,3),SS(0,3),SS(-2,2)", {1, 0}) ==
        std::vector<Cut>{{{2}, 0, 2, 1}, {{1, 0}, 0, 1, 1}});
  CHECK(cuts("S(0),R,S(-1)", {0}) == std::vector<Cut>{{{2}, 1, 1, 1}, {{0}, 0, 1, 1}});
  CHECK(cuts("S(0),P,S(1)", {0}) == std::vector<Cut>{{{2}, 1, 1, 1}, {{0}, 0, 1, 1}});
}

TEST_CASE("placement: JAX's tuples are orders, major axis first", "[unit][layout]") {
  const auto mesh = std::make_shared<const Mesh>(std::vector<int64_t>{2, 2},
                                                 std::vector<std::string>{"dp", "tp"});
  const Layout tp_dp = Layout::from_cuts(mesh, {8}, cuts_from_order(*mesh, {{1, 0}}));
  const Layout dp_tp = Layout::from_cuts(mesh, {8}, cuts_from_order(*mesh, {{0, 1}}));
  CHECK(tp_dp == literal(*mesh, 8, "SS(0,2),S(0)"));
  CHECK(dp_tp == literal(*mesh, 8, "S(0),S(0)"));
  CHECK_THROWS_WITH(cuts_from_order(*mesh, {{0}, {0}}), Catch::Contains("'dp' is named twice"));
}

TEST_CASE("placement: invalid placements are rejected with the value", "[unit][layout]") {
  using Catch::Contains;
  const Mesh mesh({2, 3}, {"dp", "tp"});
  const auto read = [&](std::vector<Placement> p, Reading reading, Order flat = {}, int dims = 2) {
    return cuts_from_placements(mesh, dims, p, reading, flat);
  };
  const Placement r, s0{PlacementKind::kShard, 0, 1}, s1{PlacementKind::kShard, 1, 1};
  CHECK_THROWS_WITH(read({r}, Reading::kLiteral),
                    Contains("placements is 1") && Contains("dp=2, tp=3"));
  CHECK_THROWS_WITH(read({r, {PlacementKind::kShard, 2, 1}}, Reading::kLiteral),
                    Contains("tensor dim 2 does not exist in a tensor of 2"));
  CHECK_THROWS_WITH(read({r, {PlacementKind::kShard, -3, 1}}, Reading::kLiteral),
                    Contains("tensor dim -3"));
  CHECK_THROWS_WITH(read({r, s0}, Reading::kLiteral, {}, 0), Contains("a scalar"));
  CHECK_THROWS_WITH(read({{PlacementKind::kStridedShard, 0, 0}, r}, Reading::kLiteral),
                    Contains("'dp' has split factor 0"));
  CHECK_THROWS_WITH(read({{static_cast<PlacementKind>(9), 0, 1}, r}, Reading::kLiteral),
                    Contains("unknown kind 9"));
  CHECK_THROWS_WITH(read({s0, s0}, Reading::kLiteral, {0}), Contains("literal reading"));
  CHECK_THROWS_WITH(read({s0, s0}, static_cast<Reading>(7)), Contains("reading 7"));
  CHECK_THROWS_WITH(read({s0, s0}, Reading::kOrdered, {2}), Contains("mesh dim 2 does not exist"));
  CHECK_THROWS_WITH(read({s0, s0}, Reading::kOrdered, {0, 0}), Contains("'dp' is named twice"));
  CHECK_THROWS_WITH(read({r, s0}, Reading::kOrdered, {0}), Contains("'dp'") && Contains("is R"));
  CHECK_THROWS_WITH(read({s0, s1}, Reading::kOrdered, {0, 1}), Contains("tensor dims 0 and 1"));
}
