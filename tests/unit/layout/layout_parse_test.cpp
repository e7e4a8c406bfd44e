#include <catch2/catch.hpp>

#include "base/error.hpp"
#include "layout/parse.hpp"

using namespace muonrt;
using Catch::Contains;

namespace {

LayoutText text(const char* shape, const char* mesh) {
  LayoutText out;
  out.shape = shape;
  out.mesh = mesh;
  return out;
}

}  // namespace

TEST_CASE("parse: every text form", "[unit][layout]") {
  CHECK(parse_list("4096, 2048", "shape") == std::vector<int64_t>{4096, 2048});
  CHECK(parse_list("", "shape").empty());
  const Mesh mesh = parse_mesh("dp=3, tp=2", "5,4,3,2,1,0");
  CHECK(mesh.shape() == std::vector<int64_t>{3, 2});
  CHECK(mesh.names() == std::vector<std::string>{"dp", "tp"});
  CHECK(mesh.ranks()[0] == 5);
  CHECK(parse_mesh("").size() == 1);
  CHECK(parse_placements("S(0), SS(-1, 2),R,P") ==
        std::vector<Placement>{{PlacementKind::kShard, 0, 1},
                               {PlacementKind::kStridedShard, -1, 2},
                               {PlacementKind::kReplicate, 0, 1},
                               {PlacementKind::kPartial, 0, 1}});
  CHECK(parse_cuts("tp:0:2,dp:1", mesh) == std::vector<Cut>{{{1}, 0, 2, 1}, {{0}, 1, 1, 1}});
  CHECK(parse_cuts("dp*tp:0:1:64", mesh) == std::vector<Cut>{{{0, 1}, 0, 1, 64}});
  CHECK(parse_ranges("0-5,5-9") == std::vector<std::pair<int64_t, int64_t>>{{0, 5}, {5, 9}});
  CHECK(parse_mesh_dims("tp*dp", mesh) == std::vector<int>{1, 0});
  CHECK(parse_reading("ordered") == Reading::kOrdered);
}

TEST_CASE("parse: to_text and parse_placements are inverse", "[unit][layout]") {
  for (const char* t : {"S(0),SS(0,2),R,P", "S(-1)", "R"}) {
    CHECK(to_text(parse_placements(t)) == t);
  }
}

TEST_CASE("parse: a layout from text equals the layout from its parts", "[unit][layout]") {
  LayoutText cuts = text("7", "dp=3,tp=2");
  cuts.rank_array = "5,4,3,2,1,0";
  cuts.cuts = "tp:0:1,dp:0:1";
  CHECK(layout_from_text(cuts).runs(0, 0) == Runs{{6, 7}});
  cuts.cuts = "tp:0";
  cuts.partial = "dp";
  CHECK(layout_from_text(cuts).partial_count() == 3);

  LayoutText rows = text("7", "dp=3");
  rows.row_bounds = "0,3,3,7";
  CHECK(layout_from_text(rows).runs(2, 0) == Runs{{3, 7}});
  rows = text("5,7", "dp=3,tp=2");
  rows.row_bounds = "dp:1:0,3,3,7";
  CHECK(layout_from_text(rows).runs(4, 1) == Runs{{3, 7}});
  CHECK(layout_from_text(rows).replicas() == 2);
  rows.row_bounds = "dp:0,3,3,5";
  CHECK(layout_from_text(rows).runs(4, 0) == Runs{{3, 5}});
  rows.row_bounds = "0,3,3,7";
  rows.cuts = "tp:0";
  CHECK_THROWS_WITH(layout_from_text(rows), Contains("end at 7"));

  LayoutText owner = text("4,4", "dp=3");
  owner.owner = "2";
  CHECK(layout_from_text(owner).local_numel(2) == 16);
  owner.owner = "dp:1";
  CHECK(layout_from_text(owner).local_numel(1) == 16);

  LayoutText flat = text("3,3", "dp=2");
  flat.flat = "0-5,5-9";
  CHECK(layout_from_text(flat).flat_range(1) == std::pair<int64_t, int64_t>{5, 9});
  flat = text("3,4", "dp=2,tp=2");
  flat.cuts = "tp:1";
  flat.flat = "0-5,5-6";
  CHECK(layout_from_text(flat).local_numel(3) == 1);
}

TEST_CASE("parse: errors quote the invalid part", "[unit][layout]") {
  const Mesh mesh = parse_mesh("dp=3,tp=2");
  CHECK_THROWS_WITH(parse_list("4,x", "shape"), Contains("shape '4,x'") && Contains("'x'"));
  CHECK_THROWS_WITH(parse_list("4,,5", "shape"), Contains("''"));
  CHECK_THROWS_WITH(parse_list("99999999999999999999", "shape"), Contains("64 bits"));
  CHECK_THROWS_WITH(parse_mesh("dp3"), Contains("'dp3'") && Contains("name=size"));
  CHECK_THROWS_WITH(parse_mesh("=3"), Contains("'=3'"));
  CHECK_THROWS_WITH(parse_mesh("d*p=3"), Contains("'d*p'"));
  CHECK_THROWS_WITH(parse_mesh("dp=two"), Contains("'two'"));
  CHECK_THROWS_WITH(parse_mesh("dp=2", "0,5000000000"), Contains("'5000000000'"));
  CHECK_THROWS_WITH(parse_placements("S(0),X"), Contains("'X' is not a placement"));
  CHECK_THROWS_WITH(parse_placements("S(0"), Contains("'S(0'"));
  CHECK_THROWS_WITH(parse_placements("S()"), Contains("'S()' has 0 numbers"));
  CHECK_THROWS_WITH(parse_placements("SS(0)"), Contains("'SS(0)' has 1 numbers"));
  CHECK_THROWS_WITH(parse_placements("S(0,2)"), Contains("'S(0,2)' has 2 numbers"));
  CHECK_THROWS_WITH(parse_placements("S(a)"), Contains("'a'"));
  CHECK_THROWS_WITH(parse_cuts("tp", mesh), Contains("'tp' has 1 fields"));
  CHECK_THROWS_WITH(parse_cuts("cp:0", mesh), Contains("no dim 'cp'") && Contains("[dp, tp]"));
  CHECK_THROWS_WITH(parse_cuts("tp:0:1:2:3", mesh), Contains("5 fields"));
  CHECK_THROWS_WITH(parse_ranges("0-5,7"), Contains("'7' is not a range"));
  CHECK_THROWS_WITH(parse_ranges("0-b"), Contains("'b'"));
  CHECK_THROWS_WITH(parse_reading("sorted"), Contains("'sorted'"));
  LayoutText t = text("7", "dp=3,tp=2");
  t.placements = "R,R";
  t.cuts = "dp:0";
  CHECK_THROWS_WITH(layout_from_text(t), Contains("placements are set together"));
  t = text("7", "dp=3,tp=2");
  t.reading = "ordered";
  CHECK_THROWS_WITH(layout_from_text(t), Contains("without placements"));
  t = text("7", "dp=3,tp=2");
  t.owner = "1";
  t.flat = "0-7";
  CHECK_THROWS_WITH(layout_from_text(t), Contains("more than one"));
}
