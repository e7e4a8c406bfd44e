#include "layout/strategies.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <thread>

#include "base/text.hpp"
#include "layout/parse.hpp"
#include "muonrt/muonrt.h"
#include "unit/layout/layout_naive.hpp"

using namespace muonrt;
using Catch::Contains;
using naive::List;

namespace {

/// A mesh that a function makes, with the memory for it.
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

/// The rows of `rank` of a tensor on a mesh, by the placements that its names say.
List rows_by_name(const std::vector<std::string>& names, const List& sizes, const List& shape,
                  bool expert, int rank, const std::vector<int>& flat = {}) {
  const auto mesh = std::make_shared<const Mesh>(sizes, names);
  const auto placements = placements_by_name(*mesh, expert ? -1 : 0, expert);
  return naive::expand(
      Layout::from_placements(mesh, shape, placements, Reading::kOrdered, flat).runs(rank, 0));
}

/// `rows` rows cut in contiguous pieces over and over, each cut {pieces, which}, the first
/// outermost.
List rows_of_cuts(int64_t rows, const std::vector<std::pair<int64_t, int64_t>>& cuts) {
  List out = naive::iota(rows);
  for (const auto& [pieces, which] : cuts)
    out = naive::chunk(out, pieces)[static_cast<size_t>(which)];
  return out;
}

}  // namespace

TEST_CASE("strategies: sizes make a mesh, tensor parallelism innermost", "[unit][strategies]") {
  muonrt_process_sizes_t sizes;
  muonrt_process_sizes_init(&sizes);
  sizes.fsdp = 2, sizes.tp = 3, sizes.pp = 2;
  Made all, stage;
  const auto make = [&](int32_t world) {
    return muonrt_mesh_from_sizes(&all.mesh, &all.storage, &sizes, world);
  };
  const auto refused = [&](int32_t world, const std::vector<const char*>& words) {
    CHECK(make(world) == MUONRT_ERROR_INVALID_ARGUMENT);
    for (const char* word : words) CHECK_THAT(muonrt_get_last_error(), Contains(word));
  };
  REQUIRE(make(12) == MUONRT_OK);
  CHECK(all.names() == "pp=2 fsdp=2 tp=3 ");
  CHECK(all.ranks() == std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  // The second stage alone.
  REQUIRE(muonrt_mesh_select(&stage.mesh, &stage.storage, &all.mesh, 12, "pp", 1) == MUONRT_OK);
  CHECK(stage.names() == "fsdp=2 tp=3 ");
  CHECK(stage.ranks() == std::vector<int32_t>{6, 7, 8, 9, 10, 11});
  muonrt_placement_t placements[2];
  REQUIRE(muonrt_placements_from_names(placements, &stage.mesh, 12, 1, 0) == MUONRT_OK);
  CHECK((placements[0].kind == MUONRT_PLACEMENT_SHARD && placements[0].dim == 0));
  CHECK((placements[1].kind == MUONRT_PLACEMENT_SHARD && placements[1].dim == 1));
  CHECK(muonrt_placements_from_names(placements, &all.mesh, 12, 1, 0) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Contains("'pp'"));
  sizes.order = "tp,fsdp,pp,dp,cp,ep";
  REQUIRE(make(12) == MUONRT_OK);
  CHECK(all.names() == "tp=3 fsdp=2 pp=2 ");
  refused(13, {"12 ranks", "13"});
  sizes.order = "tp,fsdp";
  refused(12, {"pp is 2"});
  sizes.order = nullptr;
  all.storage.capacity = 11;
  refused(12, {"11", "12"});
  sizes.fsdp = int64_t{1} << 62;
  sizes.tp = 8;
  refused(12, {"fsdp 4611686018427387904", "tp 8", "more than 2^63 ranks"});
}

TEST_CASE("strategies: by name, FSDP cuts the pieces that tensor and expert parallelism have cut",
          "[unit][strategies]") {
  for (const int64_t rows : {1, 2, 6, 7, 8, 9, 11, 13, 24}) {
    for (const int64_t fsdp : {2, 3}) {
      for (const int64_t inner : {2, 3}) {
        INFO(rows << " rows, fsdp=" << fsdp << ", inner " << inner);
        for (int rank = 0; rank < fsdp * inner; ++rank) {
          const auto expected = rows_of_cuts(rows, {{inner, rank % inner}, {fsdp, rank / inner}});
          CHECK(rows_by_name({"fsdp", "tp"}, {fsdp, inner}, {rows, 4}, false, rank) == expected);
          CHECK(rows_by_name({"efsdp", "ep"}, {fsdp, inner}, {rows, 4, 4}, true, rank) == expected);
          // Tensor parallelism on the left was the outer cut in any case.
          CHECK(rows_by_name({"tp", "dp.shard"}, {inner, fsdp}, {rows, 4}, false, rank) ==
                rows_of_cuts(rows, {{inner, rank / fsdp}, {fsdp, rank % fsdp}}));
        }
      }
    }
    for (int rank = 0; rank < 24; ++rank) {
      INFO(rows << " rows, rank " << rank);
      const int64_t at[] = {rank / 12, rank / 6 % 2, rank / 2 % 3, rank % 2};
      // Two dimensions of FSDP: the chunks of chunks that the names say, or one cut of both.
      CHECK(rows_by_name({"dp_replicate", "fsdp", "zero", "tp"}, {2, 2, 3, 2}, {rows, 4}, false,
                         rank) == rows_of_cuts(rows, {{2, at[3]}, {2, at[1]}, {3, at[2]}}));
      CHECK(rows_by_name({"dp_replicate", "fsdp", "zero", "tp"}, {2, 2, 3, 2}, {rows, 4}, false,
                         rank, {1, 2}) == rows_of_cuts(rows, {{2, at[3]}, {6, at[1] * 3 + at[2]}}));
    }
  }
}

TEST_CASE("strategies: by name, a strided shard says what the cuts to its right leave",
          "[unit][strategies]") {
  const auto text = [](const std::vector<int64_t>& shape, const std::vector<std::string>& names,
                       int tp_dim, bool expert) {
    return to_text(placements_by_name(Mesh(shape, names), tp_dim, expert));
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
}

TEST_CASE("strategies: one rank alone, or stages alone, is a mesh that replicates",
          "[unit][strategies]") {
  muonrt_process_sizes_t sizes;
  muonrt_process_sizes_init(&sizes);
  Made all, stage;
  REQUIRE(muonrt_mesh_from_sizes(&all.mesh, &all.storage, &sizes, 1) == MUONRT_OK);
  CHECK(all.names() == "one=1 ");
  const auto replicates = [](const Made& made, int32_t world) {
    muonrt_placement_t placement;
    placement.kind = MUONRT_PLACEMENT_SHARD;
    REQUIRE(muonrt_placements_from_names(&placement, &made.mesh, world, 1, 1) == MUONRT_OK);
    return placement.kind == MUONRT_PLACEMENT_REPLICATE;
  };
  CHECK(replicates(all, 1));
  sizes.pp = 2;
  REQUIRE(muonrt_mesh_from_sizes(&all.mesh, &all.storage, &sizes, 2) == MUONRT_OK);
  REQUIRE(muonrt_mesh_select(&stage.mesh, &stage.storage, &all.mesh, 2, "pp", 1) == MUONRT_OK);
  CHECK(stage.ranks() == std::vector<int32_t>{1});
  CHECK(replicates(stage, 2));
}

TEST_CASE("strategies: process groups are the lines of the mesh", "[unit][strategies]") {
  // A 2 x 3 array that is not iota: rows are tp groups, columns fsdp groups.
  const int32_t array[2][3] = {{4, 0, 2}, {5, 3, 1}};
  std::vector<GroupRanks> all(6);
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      all[static_cast<size_t>(array[i][j])] = {{array[0][j], array[1][j]},
                                               {array[i][0], array[i][1], array[i][2]}};
    }
  }
  const Mesh mesh = mesh_from_groups({"fsdp", "tp"}, all);
  CHECK(mesh.shape() == std::vector<int64_t>{2, 3});
  CHECK(mesh.ranks() == std::vector<int32_t>{4, 0, 2, 5, 3, 1});
  CHECK(mesh.names() == std::vector<std::string>{"fsdp", "tp"});
  for (const auto& [rank, group, ranks, words] :
       {std::tuple(3, 0, std::vector<int32_t>{3, 0}, "must be equal"),  // in the other order
        std::tuple(2, 1, std::vector<int32_t>{4, 0}, "equal groups"),
        std::tuple(0, 0, std::vector<int32_t>{4, 3}, "not in its own")}) {
    auto wrong = all;
    wrong[static_cast<size_t>(rank)][static_cast<size_t>(group)] = ranks;
    CHECK_THROWS_WITH(mesh_from_groups({"fsdp", "tp"}, wrong), Contains(words));
  }
  auto without = all, overlapping = all;
  for (GroupRanks& g : without) g[1].clear();  // tp is missing
  CHECK_THROWS_WITH(mesh_from_groups({"fsdp", "tp"}, without), Contains("a group is missing"));
  for (GroupRanks& g : overlapping) g.push_back(g[0]);  // ep, cut out of fsdp
  CHECK_THROWS_WITH(mesh_from_groups({"fsdp", "tp", "ep"}, overlapping), Contains("overlap"));
}

TEST_CASE("strategies: groups through the C ABI, the same mesh on every rank",
          "[unit][strategies]") {
  muonrt_thread_group_t* group = nullptr;
  REQUIRE(muonrt_thread_group_create(&group, 4) == MUONRT_OK);
  std::vector<std::thread> threads;
  std::array<std::vector<int32_t>, 4> got;
  std::array<std::string, 4> names, errors;
  for (int32_t r = 0; r < 4; ++r) {
    threads.emplace_back([&, r] {
      muonrt_comm_t* comm = nullptr;
      if (muonrt_comm_create_thread(&comm, group, r) != MUONRT_OK) return;
      const int32_t fsdp[] = {r % 2, r % 2 + 2}, tp[] = {r / 2 * 2, r / 2 * 2 + 1};
      muonrt_process_groups_t groups;
      muonrt_process_groups_init(&groups);
      groups.fsdp = fsdp, groups.n_fsdp = 2, groups.tp = tp, groups.n_tp = 2;
      Made made;
      if (muonrt_mesh_from_groups(&made.mesh, &made.storage, comm, &groups) == MUONRT_OK) {
        got[static_cast<size_t>(r)] = made.ranks();
        names[static_cast<size_t>(r)] = made.names();
      }
      if (r == 2) groups.n_tp = -1;  // bad on one rank: the error is everybody's
      if (muonrt_mesh_from_groups(&made.mesh, &made.storage, comm, &groups) != MUONRT_OK)
        errors[static_cast<size_t>(r)] = muonrt_get_last_error();
      muonrt_comm_destroy(comm);
    });
  }
  for (std::thread& t : threads) t.join();
  muonrt_thread_group_destroy(group);
  for (size_t r = 0; r < 4; ++r) {
    CHECK(got[r] == std::vector<int32_t>{0, 1, 2, 3});
    CHECK(names[r] == "fsdp=2 tp=2 ");
    CHECK_THAT(errors[r], Contains("rank 2") && Contains("n_tp is -1"));
  }
}

TEST_CASE("strategies: a layout on each rank's submesh becomes one over all",
          "[unit][strategies]") {
  // 3 x 2 ranks; dim 0 is "dp", of which each rank has its column.
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
    CHECK(whole.names() == "dp=3 lines=2 ");
    CHECK(whole.ranks() == std::vector<int32_t>{0, 4, 5, 2, 1, 3});
    for (int32_t other = 0; other < 6; ++other) {
      muonrt_run_t run;
      int64_t n = 0;
      REQUIRE(muonrt_layout_get_runs(&run, 1, &n, &all, 6, 1, shape, other, 0) == MUONRT_OK);
      const auto rows = rows_of_cuts(7, {{3, place[static_cast<size_t>(other)]}});
      CHECK((n == 1 && run.begin == rows.front() && run.end == rows.back() + 1));
    }
    // Where all have one submesh, it is the mesh, whether it holds all ranks or not.
    std::array<std::array<int32_t, 3>, 6> same;
    same.fill(columns[static_cast<size_t>(r)]);
    REQUIRE(lifted(same[0].data()) == MUONRT_OK);
    CHECK(whole.names() == "dp=3 ");
    layout.kind = MUONRT_LAYOUT_OWNER;
    CHECK(lifted(same[0].data()) == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(muonrt_get_last_error(), Contains("last_dims is null for kind 2"));
  }
}

TEST_CASE("strategies: submeshes that are no lines of one mesh are refused", "[unit][strategies]") {
  const Mesh pair({2}, {"ep"}, {0, 2});
  CHECK(lift(pair, {{0, 2}, {1, 3}, {0, 2}, {1, 3}}).ranks() == std::vector<int32_t>{0, 1, 2, 3});
  CHECK_THROWS_WITH(lift(pair, {{0, 2}, {1, 3}, {2, 0}, {1, 3}}),
                    Contains("rank 2 is in the submesh [0, 2] of rank 0 and in [2, 0] of rank 2"));
  CHECK_THROWS_WITH(lift(pair, {{0, 2}, {0, 2}, {1, 3}, {1, 3}}),
                    Contains("rank 1 is not in its own submesh, [0, 2]"));
  CHECK_THROWS_WITH(lift(pair, {{0, 2}, {1, 4}, {0, 2}, {1, 4}}), Contains("holds rank 4"));
  CHECK_THROWS_WITH(lift(pair, {{0, 1}, {0, 1}, {2, 3}, {2, 3}}), Contains("which is no rank's"));
  CHECK_THROWS_WITH(lift(pair, {{0, 2}, {1}, {0, 2}, {3}}), Contains("rank 1 has 1 ranks"));
}

TEST_CASE("strategies: what a DTensor prints is read", "[unit][strategies]") {
  const auto same = [](const char* printed, const char* text) {
    INFO(printed);
    CHECK(parse_dtensor_placements(printed) == parse_placements(text));
  };
  same("(Shard(dim=0), Replicate())", "S(0),R");
  same("(Shard(dim=0),)", "S(0)");
  same("[_StridedShard(dim=0, sf=2), Shard(dim=1)]", "SS(0,2),S(1)");
  same("(_StridedShard(dim=0, split_factor=4), Partial(sum))", "SS(0,4),P");
  same("S(0),R,P", "S(0),R,P");
  same("(Partial(), Shard(0))", "P,S(0)");
  for (const char* bad :
       {"(Shard(dim=0), Replicate()", "(Partial(avg))", "(Shard())", "Shard(dim=x)", "(Foo())"}) {
    CHECK_THROWS_WITH(parse_dtensor_placements(bad), Contains(bad));
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
