#include <catch2/catch.hpp>

#include "unit/layout/layout_vectors.hpp"

// The worked examples, read from their cuts and from their placements, and by the naive model that
// the property tests compare with.

using namespace muonrt;
using vectors::Vector;

namespace {

void check_held(const Vector& v, const Layout& layout) {
  REQUIRE(std::ssize(v.held) == layout.mesh().size());
  for (size_t p = 0; p < v.held.size(); ++p) {
    const int rank = layout.mesh().ranks()[p];
    int64_t numel = 1;
    for (size_t d = 0; d < v.held[p].size(); ++d) {
      INFO(v.name << ", position " << p << ", dim " << d);
      CHECK(naive::expand(layout.runs(rank, static_cast<int>(d))) == v.held[p][d]);
      CHECK(layout.local_shape(rank)[d] == std::ssize(v.held[p][d]));
      numel *= std::ssize(v.held[p][d]);
    }
    CHECK(layout.local_numel(rank) == numel);
  }
}

}  // namespace

TEST_CASE("layout: every worked example comes out to the index, from cuts and from placements",
          "[unit][layout]") {
  for (const Vector& v : vectors::all()) {
    check_held(v, layout_from_text(v.cuts));
    if (!v.placements.placements.empty()) check_held(v, layout_from_text(v.placements));
  }
}

TEST_CASE("layout: cutting explicit lists gives every worked example", "[unit][layout]") {
  for (const Vector& v : vectors::all()) {
    const Layout layout = layout_from_text(v.cuts);
    const naive::List& mesh = layout.mesh().shape();
    const auto coords = naive::all_coords(mesh);
    REQUIRE(coords.size() == v.held.size());
    for (size_t p = 0; p < coords.size(); ++p) {
      for (size_t d = 0; d < v.held[p].size(); ++d) {
        INFO(v.name << ", position " << p << ", dim " << d);
        CHECK(naive::indices(layout.shape()[d], static_cast<int>(d), mesh, coords[p],
                             layout.cuts()) == v.held[p][d]);
      }
    }
  }
}

TEST_CASE("layout: coordinates come from the rank array, not from a formula", "[unit][layout]") {
  for (const Vector& v : vectors::all()) {
    const Layout plain = layout_from_text(v.cuts);
    const auto mesh = std::make_shared<const Mesh>(plain.mesh().shape(), std::vector<std::string>{},
                                                   vectors::scattered_ranks(plain.mesh().size()));
    const Layout layout = Layout::from_cuts(mesh, plain.shape(), plain.cuts());
    check_held(v, layout);
    const int outside = 4;  // 5 + 3 i never is 4
    CHECK_FALSE(layout.holds_mesh_rank(outside));
    CHECK(layout.local_numel(outside) == 0);
    CHECK(layout.local_shape(outside) == std::vector<int64_t>(plain.shape().size(), 0));
    for (int d = 0; d < layout.dims(); ++d) CHECK(layout.runs(outside, d).empty());
    CHECK(layout.shard_group(outside).empty());
    CHECK(layout.shard_index(outside) == -1);
  }
}
