#include "layout/strategies.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>

#include "base/text.hpp"
#include "layout/parse.hpp"
#include "muonrt/muonrt.h"
#include "unit/layout/layout_naive.hpp"

using namespace muonrt;
using Catch::Contains;
using naive::List;

namespace {

/// A mesh from muonrt_layout_lift(), with its memory.
struct Made {
  explicit Made(int32_t capacity = 12) {
    muonrt_mesh_storage_init(&storage);
    storage.ranks = memory;
    storage.capacity = capacity;
  }
  std::vector<int32_t> ranks() const {
    int64_t n = 1;
    for (int32_t d = 0; d < mesh.ndim; ++d) n *= mesh.shape[d];
    return {mesh.ranks, mesh.ranks + n};
  }
  std::string names() const {
    std::string out;
    for (int32_t d = 0; d < mesh.ndim; ++d) out += cat(mesh.names[d], "=", mesh.shape[d], " ");
    return out;
  }
  int32_t memory[12];
  muonrt_mesh_storage_t storage;
  muonrt_mesh_t mesh;
};

/// Returns the rows that `rank` holds if the placements are derived from the names of the mesh
/// dimensions.
List rows_by_name(const std::vector<std::string>& names, const List& sizes, const List& shape,
                  bool expert, int rank, const std::vector<int>& flat = {}) {
  const auto mesh = std::make_shared<const Mesh>(sizes, names);
  const auto placements = placements_from_names(*mesh, expert ? -1 : 0, expert);
  return naive::expand(
      Layout::from_placements(mesh, shape, placements, Reading::kOrdered, flat).runs(rank, 0));
}

/// Applies contiguous cuts to `rows` rows, outermost first. Each cut is {parts, index of the part
/// that is kept}.
List rows_of_cuts(int64_t rows, const std::vector<std::pair<int64_t, int64_t>>& cuts) {
  List out = naive::iota(rows);
  for (const auto& [parts, index] : cuts)
    out = naive::chunk(out, parts)[static_cast<size_t>(index)];
  return out;
}

}  // namespace

TEST_CASE("strategies: from names, FSDP cuts the parts that TP and EP have left",
          "[unit][strategies]") {
  for (const int64_t rows : {1, 2, 6, 7, 8, 9, 11, 13, 24}) {
    for (const int64_t fsdp : {2, 3}) {
      for (const int64_t inner : {2, 3}) {
        INFO(rows << " rows, fsdp=" << fsdp << ", inner " << inner);
        for (int rank = 0; rank < fsdp * inner; ++rank) {
          const auto expected = rows_of_cuts(rows, {{inner, rank % inner}, {fsdp, rank / inner}});
          CHECK(rows_by_name({"fsdp", "tp"}, {fsdp, inner}, {rows, 4}, false, rank) == expected);
          CHECK(rows_by_name({"efsdp", "ep"}, {fsdp, inner}, {rows, 4, 4}, true, rank) == expected);
          // If TP is to the left of FSDP, TP is the outer cut.
          CHECK(rows_by_name({"tp", "dp.shard"}, {inner, fsdp}, {rows, 4}, false, rank) ==
                rows_of_cuts(rows, {{inner, rank / fsdp}, {fsdp, rank % fsdp}}));
        }
      }
    }
    for (int rank = 0; rank < 24; ++rank) {
      INFO(rows << " rows, rank " << rank);
      const int64_t at[] = {rank / 12, rank / 6 % 2, rank / 2 % 3, rank % 2};
      // Two FSDP dimensions cut the rows twice. If flat_dims lists them, they cut once, as one
      // dimension.
      CHECK(rows_by_name({"dp_replicate", "fsdp", "zero", "tp"}, {2, 2, 3, 2}, {rows, 4}, false,
                         rank) == rows_of_cuts(rows, {{2, at[3]}, {2, at[1]}, {3, at[2]}}));
      CHECK(rows_by_name({"dp_replicate", "fsdp", "zero", "tp"}, {2, 2, 3, 2}, {rows, 4}, false,
                         rank, {1, 2}) == rows_of_cuts(rows, {{2, at[3]}, {6, at[1] * 3 + at[2]}}));
    }
  }
}

TEST_CASE("strategies: from names, the split factor counts the cuts to the right",
          "[unit][strategies]") {
  const auto text = [](const std::vector<int64_t>& shape, const std::vector<std::string>& names,
                       int tp_dim, bool expert) {
    return to_text(placements_from_names(Mesh(shape, names), tp_dim, expert));
  };
  CHECK(text({2, 2}, {"fsdp", "tp"}, 0, false) == "SS(0,2),S(0)");
  CHECK(text({2, 2}, {"fsdp", "tp"}, 1, false) == "S(0),S(1)");
  CHECK(text({2, 2}, {"fsdp", "tp"}, -1, false) == "S(0),R");
  CHECK(text({2, 3}, {"efsdp", "ep"}, -1, true) == "SS(0,3),S(0)");
  CHECK(text({2, 3}, {"efsdp", "ep"}, -1, false) == "S(0),R");
  CHECK(text({2, 3, 2}, {"efsdp", "ep", "tp"}, 1, true) == "SS(0,3),S(0),S(1)");
  CHECK(text({2, 3, 2}, {"efsdp", "ep", "tp"}, 0, true) == "SS(0,6),S(0),S(0)");
  CHECK(text({2, 2, 2}, {"fsdp", "zero", "tp"}, 0, false) == "SS(0,2),SS(0,2),S(0)");
  CHECK(text({2, 2, 1}, {"fsdp", "dp", "tp"}, 0, false) == "S(0),R,R");
  CHECK(text({2, 2}, {"tp", "fsdp"}, 0, false) == "S(0),S(0)");
  CHECK(text({2, 2}, {"replicate", "shard"}, -1, false) == "R,S(0)");
}

TEST_CASE("strategies: the name and the shape of a tensor select its placements",
          "[unit][strategies]") {
  const auto text = [](const std::vector<int64_t>& sizes, const std::vector<std::string>& names,
                       const char* name, const std::vector<int64_t>& shape, bool expert = false,
                       bool transposed = false) {
    return to_text(placements_for_tensor(Mesh(sizes, names), name, shape, expert, transposed));
  };
  const std::vector<std::string> dense = {"dp", "fsdp", "tp"}, experts = {"efsdp", "ep", "tp"};
  const std::vector<int64_t> all = {2, 2, 4}, matrix = {16, 8}, stack = {8, 16, 8};
  CHECK(text(all, dense, "layers.0.q_proj.weight", matrix) == "R,SS(0,4),S(0)");
  CHECK(text(all, dense, "layers.0.o_proj.weight", matrix) == "R,S(0),S(1)");
  CHECK(text(all, dense, "h.0.mlp.c_fc.weight", matrix, false, true) == "R,S(0),S(1)");
  CHECK(text(all, dense, "h.0.mlp.c_proj.weight", matrix, false, true) == "R,SS(0,4),S(0)");
  CHECK(text(all, dense, "layers.0.mlp.gate.weight", matrix) == "R,S(0),R");
  CHECK(text(all, dense, "q_proj", matrix) == "R,SS(0,4),S(0)");
  CHECK(text(all, dense, "layers.0.q_proj.bias", {16}) == "R,S(0),R");
  CHECK(text(all, dense, "", matrix) == "R,S(0),S(1)");
  CHECK(text(all, dense, "temperature", {}) == "R,R,R");
  CHECK(text({2, 4}, {"ddp", "fsdp"}, "q_proj", matrix) == "P,S(0)");
  CHECK(text({1, 4}, {"ddp", "fsdp"}, "q_proj", matrix) == "R,S(0)");
  // With 2 x 2 ranks, each of the eight experts stays whole. With 2 x 8 ranks, the experts are cut.
  CHECK(text({2, 2, 1}, experts, "experts.up_proj", stack, true) == "SS(0,2),S(0),R");
  CHECK(text({2, 8, 1}, experts, "experts.up_proj", stack, true) == "S(1),S(0),R");
  CHECK(text({2, 8, 2}, experts, "experts.up_proj", stack, true) == "SS(1,2),S(0),S(1)");
  CHECK(text({2, 8, 2}, experts, "experts.down_proj", stack, true) == "S(1),S(0),S(2)");
  CHECK(text({2, 2, 2}, experts, "experts.up_proj", stack, true) == "SS(0,2),S(0),S(1)");
}

TEST_CASE("strategies: the arguments of muonrt_placements_for_tensor are checked",
          "[unit][strategies]") {
  const int64_t sizes[] = {2, 3}, shape[] = {4, 4, 4};
  const char* const names[] = {"fsdp", "tp"};
  muonrt_mesh_t mesh;
  muonrt_mesh_init(&mesh);
  mesh.ndim = 2;
  mesh.shape = sizes;
  mesh.names = names;
  muonrt_placement_t out[2];
  const struct {
    int32_t ndim, expert, transposed;
    const char* said;
  } rows[] = {{9, 0, 0, "ndim is 9"},
              {-1, 0, 0, "ndim is -1"},
              {2, 2, 0, "expert is 2"},
              {2, 0, -1, "transposed is -1"},
              {2, 1, 0, "expert is 1, but ndim is 2"}};
  for (const auto& row : rows) {
    CHECK(muonrt_placements_for_tensor(out, &mesh, 6, "w", row.ndim, shape, row.expert,
                                       row.transposed) == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(muonrt_get_last_error(), Contains(row.said));
  }
  REQUIRE(muonrt_placements_for_tensor(out, &mesh, 6, nullptr, 2, shape, 0, 0) == MUONRT_OK);
  CHECK((out[0].kind == MUONRT_PLACEMENT_SHARD && out[0].dim == 0));
  CHECK((out[1].kind == MUONRT_PLACEMENT_SHARD && out[1].dim == 1));
}

TEST_CASE("strategies: placements from the names of a C mesh", "[unit][strategies]") {
  const int64_t sizes[] = {2, 3};
  muonrt_mesh_t mesh;
  muonrt_mesh_init(&mesh);
  mesh.ndim = 2;
  mesh.shape = sizes;
  const auto placements_of = [&](const char* first, const char* second, auto& out) {
    const char* const names[] = {first, second};
    mesh.names = names;
    return muonrt_placements_from_names(out, &mesh, 6, 1, 0);
  };
  muonrt_placement_t out[2];
  REQUIRE(placements_of("fsdp", "tp", out) == MUONRT_OK);
  CHECK((out[0].kind == MUONRT_PLACEMENT_SHARD && out[0].dim == 0));
  CHECK((out[1].kind == MUONRT_PLACEMENT_SHARD && out[1].dim == 1));
  CHECK(placements_of("pp", "tp", out) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Contains("'pp'"));
  CHECK(placements_of("fsdp", "heads", out) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Contains("'heads'"));
}

TEST_CASE("strategies: an unknown name is rejected with the nearest known one",
          "[unit][strategies]") {
  for (const auto& [name, nearest] :
       {std::pair{"fdsp", "fsdp"}, std::pair{"dp_replicated", "dp_replicate"},
        std::pair{"dp-shard", "dp_shard"}, std::pair{"t", "tp"}, std::pair{"FSDP", "fsdp"},
        std::pair{"shards", "shard"}, std::pair{"pd", "dp"},
        std::pair{"hsdp_shrad", "hsdp_shard"}}) {
    INFO(name);
    CHECK_THROWS_WITH(placements_from_names(Mesh({2}, {name}), 1, false),
                      Contains(std::string("mesh dimension '") + name +
                               "' has an unknown name, the nearest is '" + nearest + "'"));
  }
}

TEST_CASE("strategies: a dimension of one rank replicates, whatever its name",
          "[unit][strategies]") {
  CHECK(to_text(placements_from_names(Mesh({1, 1}, {"pp", "heads"}), 1, true)) == "R,R");
}

TEST_CASE("strategies: lift a layout from each rank's submesh to all ranks", "[unit][strategies]") {
  // There are 3 x 2 ranks. The submesh of a rank is its column in `array`, with one dimension named
  // "dp".
  const int32_t array[3][2] = {{4, 0}, {2, 5}, {3, 1}};
  std::array<std::array<int32_t, 3>, 6> columns;
  std::array<int64_t, 6> place;
  for (int64_t i = 0; i < 3; ++i) {
    for (const auto j : {0, 1}) {
      columns[static_cast<size_t>(array[i][j])] = {array[0][j], array[1][j], array[2][j]};
      place[static_cast<size_t>(array[i][j])] = i;
    }
  }
  const int64_t three = 3, shape[1] = {7};
  const char* const name = "dp";
  const muonrt_placement_t shard = {MUONRT_PLACEMENT_SHARD, 0, 0};
  for (int32_t r = 0; r < 6; ++r) {
    muonrt_mesh_t mesh;
    muonrt_mesh_init(&mesh);
    mesh.ndim = 1;
    mesh.shape = &three;
    mesh.names = &name;
    mesh.ranks = columns[static_cast<size_t>(r)].data();
    muonrt_layout_t layout;
    muonrt_layout_init(&layout);
    layout.mesh = &mesh;
    layout.placements = &shard;
    Made whole(6);
    muonrt_placement_t placements[MUONRT_MAX_DIMS];
    muonrt_layout_t all;
    const auto lifted = [&](const int32_t* ranks_of_all) {
      return muonrt_layout_lift(&all, &whole.mesh, &whole.storage, placements, &layout,
                                ranks_of_all, 6);
    };
    REQUIRE(lifted(columns[0].data()) == MUONRT_OK);
    CHECK(all.mesh == &whole.mesh);
    CHECK(whole.names() == "dp=3 submeshes=2 ");
    CHECK(whole.ranks() == std::vector<int32_t>{0, 4, 5, 2, 1, 3});
    for (int32_t other = 0; other < 6; ++other) {
      muonrt_run_t run;
      int64_t n = 0;
      REQUIRE(muonrt_layout_get_runs(&run, 1, &n, &all, 6, 1, shape, other, 0) == MUONRT_OK);
      const auto rows = rows_of_cuts(7, {{3, place[static_cast<size_t>(other)]}});
      CHECK((n == 1 && run.begin == rows.front() && run.end == rows.back() + 1));
    }
    // If all ranks pass the same submesh, the result is this submesh, even if it does not contain
    // all ranks.
    std::array<std::array<int32_t, 3>, 6> same;
    same.fill(columns[static_cast<size_t>(r)]);
    REQUIRE(lifted(same[0].data()) == MUONRT_OK);
    CHECK(whole.names() == "dp=3 ");
    layout.kind = MUONRT_LAYOUT_OWNER;
    CHECK(lifted(same[0].data()) == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(muonrt_get_last_error(), Contains("last_dims is NULL for kind 2"));
  }
}

TEST_CASE("strategies: submeshes must be equal or disjoint", "[unit][strategies]") {
  const Mesh pair({2}, {"ep"}, {0, 2});
  CHECK(lift(pair, {{0, 2}, {1, 3}, {0, 2}, {1, 3}}).ranks() == std::vector<int32_t>{0, 1, 2, 3});
  CHECK_THROWS_WITH(lift(pair, {{0, 2}, {1, 3}, {2, 0}, {1, 3}}),
                    Contains("rank 2 is in the submesh [0, 2] of rank 0 and in [2, 0] of rank 2"));
  CHECK_THROWS_WITH(lift(pair, {{0, 2}, {0, 2}, {1, 3}, {1, 3}}),
                    Contains("rank 1 is not in its own submesh [0, 2]"));
  CHECK_THROWS_WITH(lift(pair, {{0, 2}, {1, 4}, {0, 2}, {1, 4}}), Contains("has rank 4"));
  CHECK_THROWS_WITH(lift(pair, {{0, 1}, {0, 1}, {2, 3}, {2, 3}}),
                    Contains("no rank has this submesh"));
  CHECK_THROWS_WITH(lift(pair, {{0, 2}, {1}, {0, 2}, {3}}), Contains("rank 1 has 1 ranks"));
}

TEST_CASE("strategies: parse the text that a DTensor prints", "[unit][strategies]") {
  const auto same = [](const char* printed, const char* text) {
    INFO(printed);
    CHECK(parse_placements(printed) == parse_placements(text));
  };
  same("(Shard(dim=0), Replicate())", "S(0),R");
  same("(Shard(dim=0),)", "S(0)");
  same("[_StridedShard(dim=0, sf=2), Shard(dim=1)]", "SS(0,2),S(1)");
  same("(_StridedShard(dim=0, split_factor=4), Partial(sum))", "SS(0,4),P");
  same("S(0),R,P", "S(0),R,P");
  same("(Partial(), Shard(0))", "P,S(0)");
  same("_StridedShard(dim=0, sf=2), _S(0, 2),P(sum)", "SS(0,2),SS(0,2),P");
  for (const char* bad : {"(Shard(dim=0), Replicate()", "(Partial(avg))", "(Shard())",
                          "Shard(dim=x)", "(Foo())", "S(1 0)", "Shard(sf=0)", "[S(0))"}) {
    CHECK_THROWS_WITH(parse_placements(bad), Contains(bad));
  }
  muonrt_placement_t out[2];
  int32_t count = 0;
  REQUIRE(muonrt_placements_parse(out, 2, &count, "(Replicate(), _StridedShard(dim=1, sf=3))") ==
          MUONRT_OK);
  CHECK(count == 2);
  CHECK(out[0].kind == MUONRT_PLACEMENT_REPLICATE);
  CHECK((out[1].kind == MUONRT_PLACEMENT_STRIDED_SHARD && out[1].dim == 1 &&
         out[1].split_factor == 3));
  REQUIRE(muonrt_placements_parse(out, 2, &count, "(P(sum), _S(0, 2))") == MUONRT_OK);
  CHECK(out[0].kind == MUONRT_PLACEMENT_PARTIAL);
  CHECK((out[1].kind == MUONRT_PLACEMENT_STRIDED_SHARD && out[1].split_factor == 2));
  CHECK(muonrt_placements_parse(out, 2, &count, "_StridedShard(0, split_factor=0)") ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Contains("split factor 0"));
}
