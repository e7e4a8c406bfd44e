#include "layout/strategies.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <thread>

#include "layout/parse.hpp"
#include "muonrt/muonrt.h"
#include "support/world.hpp"

using namespace muonrt;
using Catch::Contains;

namespace {

std::vector<int32_t> ranks_of(const muonrt_mesh_t& m) {
  int64_t n = 1;
  for (int32_t d = 0; d < m.ndim; ++d) n *= m.shape[d];
  return {m.ranks, m.ranks + n};
}

/// The rows of `rank` of a tensor on a mesh, by the placements that its names say.
std::vector<int64_t> rows_by_name(const std::vector<const char*>& names,
                                  const std::vector<int64_t>& sizes,
                                  const std::vector<int64_t>& shape, int32_t expert, int32_t rank,
                                  const std::vector<int32_t>& flat = {}) {
  muonrt_mesh_t mesh;
  muonrt_mesh_init(&mesh);
  mesh.ndim = static_cast<int32_t>(sizes.size());
  mesh.shape = sizes.data();
  mesh.names = names.data();
  int32_t world = 1;
  for (const int64_t n : sizes) world *= static_cast<int32_t>(n);
  muonrt_placement_t placements[MUONRT_MAX_DIMS];
  REQUIRE(muonrt_placements_by_name(placements, &mesh, world, expert ? -1 : 0, expert) ==
          MUONRT_OK);
  muonrt_layout_t layout;
  muonrt_layout_init(&layout);
  layout.reading = MUONRT_READING_ORDERED;
  layout.mesh = &mesh;
  layout.placements = placements;
  layout.flat_dims = flat.empty() ? nullptr : flat.data();
  layout.n_flat_dims = static_cast<int32_t>(flat.size());
  muonrt_run_t runs[64];
  int64_t n = 0;
  REQUIRE(muonrt_layout_runs(runs, 64, &n, &layout, world, static_cast<int32_t>(shape.size()),
                             shape.data(), rank, 0) == MUONRT_OK);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t row = runs[i].begin; row < runs[i].end; ++row) out.push_back(row);
  }
  return out;
}

/// `rows` rows cut in contiguous pieces over and over, each cut {pieces, which}, the first
/// outermost.
std::vector<int64_t> rows_of_cuts(int64_t rows,
                                  const std::vector<std::pair<int64_t, int64_t>>& cuts) {
  int64_t begin = 0, end = rows;
  for (const auto& [pieces, which] : cuts) {
    const int64_t width = (end - begin + pieces - 1) / pieces;
    const int64_t first = std::min(begin + which * width, end);
    end = std::min(first + width, end);
    begin = first;
  }
  std::vector<int64_t> out;
  for (int64_t row = begin; row < end; ++row) out.push_back(row);
  return out;
}

std::string names_of(const muonrt_mesh_t& m) {
  std::string out;
  for (int32_t d = 0; d < m.ndim; ++d) out += cat(m.names[d], "=", m.shape[d], " ");
  return out;
}

}  // namespace

TEST_CASE("strategies: sizes make a mesh, tensor parallelism innermost", "[unit][strategies]") {
  muonrt_process_sizes_t sizes;
  muonrt_process_sizes_init(&sizes);
  sizes.fsdp = 2, sizes.tp = 3, sizes.pp = 2;
  int32_t ranks[12];
  muonrt_mesh_storage_t storage;
  muonrt_mesh_storage_init(&storage);
  storage.ranks = ranks;
  storage.capacity = 12;
  muonrt_mesh_t mesh;
  REQUIRE(muonrt_mesh_from_sizes(&mesh, &storage, &sizes, 12) == MUONRT_OK);
  CHECK(names_of(mesh) == "pp=2 fsdp=2 tp=3 ");
  CHECK(ranks_of(mesh) == std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  // The second stage alone.
  int32_t stage_ranks[12];
  muonrt_mesh_storage_t stage_storage;
  muonrt_mesh_storage_init(&stage_storage);
  stage_storage.ranks = stage_ranks;
  stage_storage.capacity = 12;
  muonrt_mesh_t stage;
  REQUIRE(muonrt_mesh_select(&stage, &stage_storage, &mesh, 12, "pp", 1) == MUONRT_OK);
  CHECK(names_of(stage) == "fsdp=2 tp=3 ");
  CHECK(ranks_of(stage) == std::vector<int32_t>{6, 7, 8, 9, 10, 11});
  muonrt_placement_t placements[2];
  REQUIRE(muonrt_placements_by_name(placements, &stage, 12, 1, 0) == MUONRT_OK);
  CHECK((placements[0].kind == MUONRT_PLACEMENT_SHARD && placements[0].dim == 0));
  CHECK((placements[1].kind == MUONRT_PLACEMENT_SHARD && placements[1].dim == 1));
  CHECK(muonrt_placements_by_name(placements, &mesh, 12, 1, 0) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_last_error(), Contains("'pp'"));
  sizes.order = "tp,fsdp,pp,dp,cp,ep";
  REQUIRE(muonrt_mesh_from_sizes(&mesh, &storage, &sizes, 12) == MUONRT_OK);
  CHECK(names_of(mesh) == "tp=3 fsdp=2 pp=2 ");
  CHECK(muonrt_mesh_from_sizes(&mesh, &storage, &sizes, 13) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_last_error(), Contains("12 ranks") && Contains("13"));
  sizes.order = "tp,fsdp";
  CHECK(muonrt_mesh_from_sizes(&mesh, &storage, &sizes, 12) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_last_error(), Contains("pp is 2"));
  sizes.order = nullptr;
  sizes.fsdp = int64_t{1} << 62;
  sizes.tp = 8;
  CHECK(muonrt_mesh_from_sizes(&mesh, &storage, &sizes, 12) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_last_error(), Contains("fsdp 4611686018427387904") && Contains("tp 8") &&
                                      Contains("more than 2^63 ranks"));
  sizes.fsdp = 2;
  sizes.tp = 3;
  storage.capacity = 11;
  sizes.order = nullptr;
  CHECK(muonrt_mesh_from_sizes(&mesh, &storage, &sizes, 12) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_last_error(), Contains("11") && Contains("12"));
}

TEST_CASE("strategies: by name, FSDP cuts the pieces that tensor and expert parallelism have cut",
          "[unit][strategies]") {
  for (const int64_t rows : {1, 2, 6, 7, 8, 9, 11, 13, 24}) {
    for (const int64_t fsdp : {2, 3}) {
      for (const int64_t inner : {2, 3}) {
        INFO(rows << " rows, fsdp=" << fsdp << ", inner " << inner);
        for (int32_t rank = 0; rank < fsdp * inner; ++rank) {
          const auto expected = rows_of_cuts(rows, {{inner, rank % inner}, {fsdp, rank / inner}});
          CHECK(rows_by_name({"fsdp", "tp"}, {fsdp, inner}, {rows, 4}, 0, rank) == expected);
          CHECK(rows_by_name({"efsdp", "ep"}, {fsdp, inner}, {rows, 4, 4}, 1, rank) == expected);
          // Tensor parallelism on the left was the outer cut in any case.
          CHECK(rows_by_name({"tp", "dp.shard"}, {inner, fsdp}, {rows, 4}, 0, rank) ==
                rows_of_cuts(rows, {{inner, rank / fsdp}, {fsdp, rank % fsdp}}));
        }
      }
    }
    for (int32_t rank = 0; rank < 24; ++rank) {
      INFO(rows << " rows, rank " << rank);
      const int64_t at[] = {rank / 12, rank / 6 % 2, rank / 2 % 3, rank % 2};
      // Two dimensions of FSDP: the chunks of chunks that the names say, or one cut of both.
      CHECK(rows_by_name({"dp_replicate", "fsdp", "zero", "tp"}, {2, 2, 3, 2}, {rows, 4}, 0,
                         rank) == rows_of_cuts(rows, {{2, at[3]}, {2, at[1]}, {3, at[2]}}));
      CHECK(rows_by_name({"dp_replicate", "fsdp", "zero", "tp"}, {2, 2, 3, 2}, {rows, 4}, 0, rank,
                         {1, 2}) == rows_of_cuts(rows, {{2, at[3]}, {6, at[1] * 3 + at[2]}}));
    }
  }
  CHECK(rows_by_name({"fsdp", "tp"}, {2, 2}, {8, 4}, 0, 1) == std::vector<int64_t>{4, 5});
  CHECK(rows_by_name({"fsdp", "tp"}, {3, 2}, {7, 4}, 0, 5) == std::vector<int64_t>{6});
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
  int32_t ranks[2], stage_ranks[2];
  muonrt_mesh_storage_t storage, stage_storage;
  muonrt_mesh_storage_init(&storage);
  muonrt_mesh_storage_init(&stage_storage);
  storage.ranks = ranks, stage_storage.ranks = stage_ranks;
  storage.capacity = stage_storage.capacity = 2;
  muonrt_mesh_t mesh, stage;
  muonrt_placement_t placement;
  REQUIRE(muonrt_mesh_from_sizes(&mesh, &storage, &sizes, 1) == MUONRT_OK);
  CHECK(names_of(mesh) == "one=1 ");
  REQUIRE(muonrt_placements_by_name(&placement, &mesh, 1, 1, 0) == MUONRT_OK);
  CHECK(placement.kind == MUONRT_PLACEMENT_REPLICATE);
  sizes.pp = 2;
  REQUIRE(muonrt_mesh_from_sizes(&mesh, &storage, &sizes, 2) == MUONRT_OK);
  REQUIRE(muonrt_mesh_select(&stage, &stage_storage, &mesh, 2, "pp", 1) == MUONRT_OK);
  CHECK(ranks_of(stage) == std::vector<int32_t>{1});
  placement.kind = MUONRT_PLACEMENT_SHARD;
  REQUIRE(muonrt_placements_by_name(&placement, &stage, 2, 1, 1) == MUONRT_OK);
  CHECK(placement.kind == MUONRT_PLACEMENT_REPLICATE);
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
  auto wrong = all;
  wrong[3][0] = {3, 0};  // the other order on one rank
  CHECK_THROWS_WITH(mesh_from_groups({"fsdp", "tp"}, wrong), Contains("must be equal"));
  wrong = all;
  for (GroupRanks& g : wrong) g[1].clear();  // tp is missing
  CHECK_THROWS_WITH(mesh_from_groups({"fsdp", "tp"}, wrong), Contains("a group is missing"));
  wrong = all;
  for (GroupRanks& g : wrong) g.push_back(g[0]);  // ep, cut out of fsdp
  CHECK_THROWS_WITH(mesh_from_groups({"fsdp", "tp", "ep"}, wrong), Contains("overlap"));
  wrong = all;
  wrong[2][1] = {4, 0};
  CHECK_THROWS_WITH(mesh_from_groups({"fsdp", "tp"}, wrong), Contains("equal groups"));
  wrong = all;
  wrong[0][0] = {4, 3};
  CHECK_THROWS_WITH(mesh_from_groups({"fsdp", "tp"}, wrong), Contains("not in its own"));
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
      int32_t ranks[4];
      muonrt_mesh_storage_t storage;
      muonrt_mesh_storage_init(&storage);
      storage.ranks = ranks;
      storage.capacity = 4;
      muonrt_mesh_t mesh;
      if (muonrt_mesh_from_groups(&mesh, &storage, comm, &groups) == MUONRT_OK) {
        got[static_cast<size_t>(r)] = ranks_of(mesh);
        names[static_cast<size_t>(r)] = names_of(mesh);
      }
      if (r == 2) groups.n_tp = -1;  // bad on one rank: the error is everybody's
      if (muonrt_mesh_from_groups(&mesh, &storage, comm, &groups) != MUONRT_OK)
        errors[static_cast<size_t>(r)] = muonrt_last_error();
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
    int32_t ranks[6];
    muonrt_mesh_storage_t storage;
    muonrt_mesh_storage_init(&storage);
    storage.ranks = ranks;
    storage.capacity = 6;
    muonrt_placement_t placements[MUONRT_MAX_DIMS];
    muonrt_layout_t all;
    muonrt_mesh_t whole;
    REQUIRE(muonrt_layout_lift(&all, &whole, &storage, placements, &layout, columns[0].data(), 6) ==
            MUONRT_OK);
    CHECK(names_of(*all.mesh) == "dp=3 lines=2 ");
    CHECK(ranks_of(*all.mesh) == std::vector<int32_t>{0, 4, 5, 2, 1, 3});
    for (int32_t other = 0; other < 6; ++other) {
      muonrt_run_t run;
      int64_t n = 0;
      REQUIRE(muonrt_layout_runs(&run, 1, &n, &all, 6, 1, shape, other, 0) == MUONRT_OK);
      const auto rows = rows_of_cuts(7, {{3, place[static_cast<size_t>(other)]}});
      CHECK((n == 1 && run.begin == rows.front() && run.end == rows.back() + 1));
    }
    // Where all have one submesh, it is the mesh, whether it holds all ranks or not.
    std::array<std::array<int32_t, 3>, 6> same;
    same.fill(columns[static_cast<size_t>(r)]);
    REQUIRE(muonrt_layout_lift(&all, &whole, &storage, placements, &layout, same[0].data(), 6) ==
            MUONRT_OK);
    CHECK(names_of(*all.mesh) == "dp=3 ");
    layout.kind = MUONRT_LAYOUT_OWNER;
    CHECK(muonrt_layout_lift(&all, &whole, &storage, placements, &layout, same[0].data(), 6) ==
          MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(muonrt_last_error(), Contains("last_dims is null for kind 2"));
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
  CHECK_THAT(muonrt_last_error(), Contains("split factor 0"));
}
