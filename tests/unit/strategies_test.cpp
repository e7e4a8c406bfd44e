#include "layout/strategies.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <thread>

#include "layout/parse.hpp"
#include "muonrt/muonrt.h"
#include "support/world.hpp"

using namespace muonrt;
using Catch::Matchers::Contains;

namespace {

std::vector<int32_t> ranks_of(const muonrt_mesh_t& m) {
  int64_t n = 1;
  for (int32_t d = 0; d < m.ndim; ++d) n *= m.shape[d];
  return {m.ranks, m.ranks + n};
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
  storage.capacity = 11;
  sizes.order = nullptr;
  CHECK(muonrt_mesh_from_sizes(&mesh, &storage, &sizes, 12) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_last_error(), Contains("11") && Contains("12"));
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
