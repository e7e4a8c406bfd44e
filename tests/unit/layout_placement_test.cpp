#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "base/error.hpp"
#include "layout/layout.hpp"
#include "layout/parse.hpp"
#include "unit/layout_naive.hpp"

using namespace muonrt;

namespace {

using Order = std::vector<int>;

/// Placements of a tensor of one dim whose split factors say `order`; other mesh dims replicate.
std::vector<Placement> encode(const Mesh& mesh, const Order& order) {
  std::vector<Placement> out(static_cast<size_t>(mesh.dims()));
  for (size_t t = 0; t < order.size(); ++t) {
    int64_t factor = 1;  // sizes of the dims that cut earlier but stand further right
    for (size_t s = 0; s < t; ++s) {
      if (order[s] > order[t]) factor *= mesh.shape()[static_cast<size_t>(order[s])];
    }
    out[static_cast<size_t>(order[t])] = {
        factor == 1 ? PlacementKind::kShard : PlacementKind::kStridedShard, 0, factor};
  }
  return out;
}

std::string encoded(const Mesh& mesh, const Order& order) { return to_text(encode(mesh, order)); }

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

TEST_CASE("placement: orders are decoded as in the table of the reference", "[unit][layout]") {
  const Mesh two({3, 5}), three({2, 3, 5});  // (dp, tp); (a, b, c)
  const auto decoded = [](const Mesh& mesh, const char* text) {
    return decode_order(mesh, 1, parse_placements(text)).value().at(0);
  };
  CHECK(decoded(two, "SS(0,5),S(0)") == Order{1, 0});
  CHECK(decoded(two, "S(0),S(0)") == Order{0, 1});
  CHECK(decoded(three, "SS(0,15),SS(0,5),S(0)") == Order{2, 1, 0});
  CHECK(decoded(three, "SS(0,5),SS(0,5),S(0)") == Order{2, 0, 1});
  CHECK(decoded(three, "S(0),SS(0,5),S(0)") == Order{0, 2, 1});
  CHECK(decoded(three, "SS(0,15),S(0),S(0)") == Order{1, 2, 0});
  CHECK(decoded(three, "R,R,S(0)") == Order{2});
}

TEST_CASE("placement: even blocks stand where the table of the reference puts them",
          "[unit][layout]") {
  const int64_t a = 2, b = 3, c = 5, n = a * b * c;
  const Mesh mesh({a, b, c});
  const auto offset = [&](const char* text, int64_t i, int64_t j, int64_t k) {
    return literal(mesh, n, text).runs(static_cast<int>((i * b + j) * c + k), 0)[0].begin;
  };
  for (int64_t i = 0; i < a; ++i) {
    for (int64_t j = 0; j < b; ++j) {
      for (int64_t k = 0; k < c; ++k) {
        CHECK(offset("SS(0,15),SS(0,5),S(0)", i, j, k) == (k * b + j) * a + i);
        CHECK(offset("SS(0,5),SS(0,5),S(0)", i, j, k) == (k * a + i) * b + j);
        CHECK(offset("S(0),SS(0,5),S(0)", i, j, k) == (i * c + k) * b + j);
        CHECK(offset("SS(0,15),S(0),S(0)", i, j, k) == (j * c + k) * a + i);
        CHECK(offset("S(0),S(0),S(0)", i, j, k) == (i * b + j) * c + k);
      }
    }
  }
}

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

TEST_CASE("placement: mesh dims of size 1 decode whatever their split factor", "[unit][layout]") {
  const Mesh mesh({1, 4, 1});
  for (const char* text : {"SS(0,4),S(0),R", "SS(0,7),S(0),SS(0,3)", "S(0),S(0),S(0)"}) {
    INFO(text);
    CHECK(ordered(mesh, 10, text) == literal(mesh, 10, text));
    CHECK(ordered(mesh, 10, text).runs(3, 0) == Runs{{9, 10}});
  }
}

TEST_CASE("placement: split factors that say no order are refused by the ordered reading",
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

TEST_CASE(
    "placement: FSDP x TP on one dim with uneven sizes parts from the literal reading as often "
    "as counted in the reference",
    "[unit][layout]") {
  int64_t differ = 0, all = 0;
  std::vector<std::vector<int64_t>> smallest;
  for (int64_t n = 1; n <= 64; ++n) {
    for (int64_t dp = 1; dp <= 6; ++dp) {
      for (int64_t tp = 1; tp <= 6; ++tp) {
        const Mesh mesh({dp, tp});
        const std::string text = cat("SS(0,", tp, "),S(0)");
        const Layout a = literal(mesh, n, text), b = ordered(mesh, n, text, {0});
        const bool parted = !(a == b);
        ++all;
        differ += parted;
        if (parted && smallest.size() < 4) smallest.push_back({n, dp, tp});
        if (parted) CHECK((dp > 2 && n % tp != 0));
        if (tp == 2) CHECK(parted == (n % (2 * dp) == 1 && n > 1 && dp >= 3));
        bool sizes_differ = false;
        for (int rank = 0; rank < mesh.size(); ++rank) {
          sizes_differ = sizes_differ || a.local_numel(rank) != b.local_numel(rank);
        }
        CHECK(sizes_differ == parted);
      }
    }
  }
  CHECK(all == 2304);
  CHECK(differ == 155);
  CHECK(smallest ==
        std::vector<std::vector<int64_t>>{{7, 3, 2}, {9, 4, 2}, {11, 3, 3}, {11, 5, 2}});
}

TEST_CASE("placement: nested chunks are not the flattened chunk, as often as counted",
          "[unit][layout]") {
  int64_t differ = 0;
  for (int64_t n = 1; n <= 32; ++n) {
    for (int64_t a = 2; a <= 4; ++a) {
      for (int64_t b = 2; b <= 4; ++b) {
        const auto mesh = std::make_shared<const Mesh>(std::vector<int64_t>{a, b});
        const bool equal = Layout::from_cuts(mesh, {n}, {{{0}, 0}, {{1}, 0}}) ==
                           Layout::from_cuts(mesh, {n}, {{{0, 1}, 0}});
        differ += !equal;
        if (n % (a * b) == 0) CHECK(equal);
      }
    }
  }
  CHECK(differ == 193);
}

TEST_CASE("placement: literal equals ordered where all sizes but the last divide",
          "[unit][layout]") {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{2, 3}, {3, 2}, {4, 3}, {2, 2, 2}, {2, 3, 2}, {3, 2, 2}, {2, 2, 3}}) {
    const Mesh mesh(shape);
    Order order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    do {
      int64_t product = 1;
      for (size_t t = 0; t + 1 < order.size(); ++t) product *= shape[static_cast<size_t>(order[t])];
      for (int64_t n = product; n <= 60; n += product) {
        const std::string text = encoded(mesh, order);
        INFO(text << " n " << n);
        const Layout a = literal(mesh, n, text), b = ordered(mesh, n, text);
        REQUIRE(a == b);
        for (int rank = 0; rank < mesh.size(); ++rank) REQUIRE(a.runs(rank, 0).size() <= 1);
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
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

TEST_CASE("placement: bad placements are refused with the piece that is wrong", "[unit][layout]") {
  using Catch::Contains;
  const Mesh mesh({2, 3}, {"dp", "tp"});
  const auto read = [&](std::vector<Placement> p, Reading reading, Order flat = {}, int dims = 2) {
    return cuts_from_placements(mesh, dims, p, reading, flat);
  };
  const Placement r, s0{PlacementKind::kShard, 0, 1}, s1{PlacementKind::kShard, 1, 1};
  CHECK_THROWS_WITH(read({r}, Reading::kLiteral), Contains("1 given") && Contains("dp=2, tp=3"));
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
